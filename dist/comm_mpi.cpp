#include "dist/comm_mpi.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "dist/shard.h"
#include "kernels/waiting.h"

namespace sy {
namespace {

// MPI-3 counts are int. Every count passes here.
int narrow(Index n) {
  SY_ASSERT(n >= 0 && n <= std::numeric_limits<int>::max(), "{} elements in one MPI message", n);
  return static_cast<int>(n);
}

// Of a call that has returned.
void check_mpi(int code, const char* what) {
  Waiting::progress();
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail("{} failed: {}: another rank may have died; its own message says why", what, std::string(text, length));
}

template <class T>
void reduce_into(T* x, const T* y, Index n, Reduce op) {
  if (op == Reduce::sum)
    for (Index i = 0; i < n; ++i) x[i] += y[i];
  else
    for (Index i = 0; i < n; ++i) x[i] = std::max(x[i], y[i]);
}

void reduce_into(DType type, std::byte* x, const std::byte* y, Index n, Reduce op) {
  const auto as = [&](auto zero) {
    using T = decltype(zero);
    reduce_into(reinterpret_cast<T*>(x), reinterpret_cast<const T*>(y), n, op);
  };
  switch (type) {
    case DType::f32:
      return as(float{});
    case DType::f64:
      return as(double{});
    case DType::i32:
      return as(std::int32_t{});
    case DType::i64:
      return as(std::int64_t{});
    default:
      SY_ASSERT(false, "no reduction of {}", info(type).name);
  }
}

class CommMpi final : public Comm {
 public:
  CommMpi(MPI_Comm comm, bool owned) : comm_(comm), owned_(owned) {
    MPI_Comm_size(comm_, &size_);
    MPI_Comm_rank(comm_, &rank_);
    others_ = others_in_words();
  }
  ~CommMpi() override {
    if (owned_) MPI_Comm_free(&comm_);
  }

  int size() const override { return size_; }
  int rank() const override { return rank_; }

  const char* others() const override { return others_; }

  bool tell(std::span<const Index> mine, std::span<Index> all) const override {
    const int bytes = narrow(static_cast<Index>(mine.size_bytes()));
    check_mpi(MPI_Allgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, comm_), "MPI_Allgather");
    return true;
  }

 private:
  const char* others_in_words() const {
    std::vector<int> here(static_cast<std::size_t>(size_)), in_world(here.size());
    std::iota(here.begin(), here.end(), 0);
    MPI_Group group, world;
    MPI_Comm_group(comm_, &group);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_translate_ranks(group, size_, here.data(), world, in_world.data());
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    in_world.erase(in_world.begin() + rank_);
    std::sort(in_world.begin(), in_world.end());
    return lasting(fmt::format("with rank{} {}", in_world.size() == 1 ? "" : "s", ranges(in_world)));
  }

  std::unique_ptr<Comm> do_split(const std::function<int(int)>& color) const override {
    MPI_Comm part;
    check_mpi(MPI_Comm_split(comm_, color(rank_), rank_, &part), "MPI_Comm_split");
    int size = 0;
    MPI_Comm_size(part, &size);
    if (size == 1) {  // no MPI call from here on
      MPI_Comm_free(&part);
      return make_comm_self();
    }
    MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN);
    return make_comm_mpi(part, true);
  }

  void do_barrier() override { check_mpi(MPI_Barrier(comm_), "MPI_Barrier"); }

  void do_broadcast(View x, int root) override {
    for (Index at = 0; at < x.size_bytes(); at += message_bytes)
      check_mpi(MPI_Bcast(x.bytes() + at, narrow(std::min(message_bytes, x.size_bytes() - at)), MPI_BYTE, root, comm_),
                "MPI_Bcast");
  }

  // As all_reduce_bytes says.
  void do_all_reduce(View x, Reduce op) override {
    const Index width = size_of(x.dtype()), n = x.elements();
    if (x.size_bytes() > all_reduce_whole) {
      for (Index at = 0; at < n; at += all_reduce_block / width)
        reduce_by_pieces(x.dtype(), x.bytes() + at * width, std::min(all_reduce_block / width, n - at), op);
      return;
    }
    scratch_.resize(size_ * n * width);
    check_mpi(
        MPI_Allgather(x.bytes(), narrow(n * width), MPI_BYTE, scratch_.data(), narrow(n * width), MPI_BYTE, comm_),
        "MPI_Allgather");
    add_in_rank_order(x.dtype(), x.bytes(), n, op);
  }

  // x = the reduction of the ranks' n elements each, which lie in scratch_.
  void add_in_rank_order(DType dtype, std::byte* x, Index n, Reduce op) {
    const Index bytes = n * size_of(dtype);
    if (bytes > 0) std::memcpy(x, scratch_.data(), bytes);
    for (int r = 1; r < size_; ++r) reduce_into(dtype, x, scratch_.data() + r * bytes, n, op);
  }

  void reduce_by_pieces(DType dtype, std::byte* x, Index n, Reduce op) {
    const Index width = size_of(dtype);
    const Range mine = piece(n, size_, rank_);
    std::vector<Index> pieces, own(size_, mine.size() * width);
    for (int r = 0; r < size_; ++r) pieces.push_back(piece(n, size_, r).size() * width);
    scratch_.resize(size_ * mine.size() * width);
    exchange([&](int r) { return x + piece(n, size_, r).begin * width; }, pieces, scratch_.data(), own);
    std::byte* const sum = x + mine.begin * width;
    add_in_rank_order(dtype, sum, mine.size(), op);
    exchange([&](int) { return sum; }, own, x, pieces);
  }

  // Gathers a bounded piece of every rank's part at the root, which sums in rank order.
  void do_reduce(View x, int root) override {
    const Index step = std::max<Index>(1, scratch_bytes / 4 / size_);
    for (Index at = 0; at < x.elements(); at += step) {
      const Index n = std::min(step, x.elements() - at);
      float* const mine = x.f32() + at;
      scratch_.resize(rank_ == root ? size_ * n * 4 : 0);
      check_mpi(MPI_Gather(mine, narrow(n), MPI_FLOAT, scratch_.data(), narrow(n), MPI_FLOAT, root, comm_),
                "MPI_Gather");
      if (rank_ != root) continue;
      std::memcpy(mine, scratch_.data(), n * 4);
      for (int r = 1; r < size_; ++r)
        reduce_into(mine, reinterpret_cast<const float*>(scratch_.data()) + r * n, n, Reduce::sum);
    }
  }

  // What is sent are the other ranks' pieces of in; its own is copied before its sum is written: the two may be one.
  void do_reduce_scatter(ConstView in, View out) override {
    const Index n = out.elements();
    const Index step = std::max<Index>(1024, scratch_bytes / 4 / size_);
    std::vector<MPI_Request> requests;
    for (Index at = 0; at < n; at += step) {
      const Index count = std::min(step, n - at);
      scratch_.resize(size_ * count * 4);
      requests.clear();
      for (int i = 1; i < size_; ++i) {
        const int from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
        check_mpi(MPI_Irecv(scratch_.data() + from * count * 4, narrow(count), MPI_FLOAT, from, 0, comm_,
                            &requests.emplace_back()),
                  "MPI_Irecv");
        check_mpi(MPI_Isend(in.f32() + to * n + at, narrow(count), MPI_FLOAT, to, 0, comm_, &requests.emplace_back()),
                  "MPI_Isend");
      }
      std::memcpy(scratch_.data() + rank_ * count * 4, in.f32() + rank_ * n + at, count * 4);
      wait(requests);
      float* sum = out.f32() + at;
      std::memcpy(sum, scratch_.data(), count * 4);
      for (int r = 1; r < size_; ++r)
        reduce_into(sum, reinterpret_cast<const float*>(scratch_.data()) + r * count, count, Reduce::sum);
    }
  }

  void do_all_gather(ConstView in, View out) override {
    const std::vector<Index> bytes(size_, in.size_bytes());
    exchange([&](int) { return in.bytes(); }, bytes, out.bytes(), bytes);
  }

  void do_all_to_all_v(ConstView in, std::span<const Index> send, View out, std::span<const Index> receive) override {
    const Index row = in.shape().elements(1) * size_of(in.dtype());
    std::vector<Index> out_bytes(size_), in_bytes(size_), begin(size_);
    Index at = 0;
    for (int r = 0; r < size_; ++r) {
      begin[r] = at;
      out_bytes[r] = send[r] * row;
      in_bytes[r] = receive[r] * row;
      at += out_bytes[r];
    }
    exchange([&](int r) { return in.bytes() + begin[r]; }, out_bytes, out.bytes(), in_bytes);
  }

  static constexpr Index message_bytes = Index{1} << 30;  // below the int limit
  static constexpr Index scratch_bytes = Index{8} << 20;

  void wait(std::vector<MPI_Request>& requests) {
    check_mpi(MPI_Waitall(narrow(static_cast<Index>(requests.size())), requests.data(), MPI_STATUSES_IGNORE),
              "MPI_Waitall");
  }

  // Sends send[r] bytes from source(r) to each rank r, and receives receive[r] bytes from each in rank order.
  template <class Source>
  void exchange(Source source, std::span<const Index> send, std::byte* out, std::span<const Index> receive) {
    std::vector<Index> begin(size_);
    for (int r = 1; r < size_; ++r) begin[r] = begin[r - 1] + receive[r - 1];
    std::vector<MPI_Request> requests;
    for (int i = 1; i < size_; ++i) {
      const int from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
      for (Index at = 0; at < receive[from]; at += message_bytes)
        check_mpi(MPI_Irecv(out + begin[from] + at, narrow(std::min(message_bytes, receive[from] - at)), MPI_BYTE, from,
                            0, comm_, &requests.emplace_back()),
                  "MPI_Irecv");
      for (Index at = 0; at < send[to]; at += message_bytes)
        check_mpi(MPI_Isend(source(to) + at, narrow(std::min(message_bytes, send[to] - at)), MPI_BYTE, to, 0, comm_,
                            &requests.emplace_back()),
                  "MPI_Isend");
    }
    if (receive[rank_] > 0 && out + begin[rank_] != source(rank_))
      std::memcpy(out + begin[rank_], source(rank_), receive[rank_]);
    wait(requests);
  }

  MPI_Comm comm_;
  bool owned_;
  int size_ = 1, rank_ = 0;
  const char* others_;
  std::vector<std::byte> scratch_;
};

}  // namespace

std::unique_ptr<Comm> make_comm_mpi(MPI_Comm comm, bool owned) {
  return std::make_unique<CommMpi>(comm, owned);
}

}  // namespace sy

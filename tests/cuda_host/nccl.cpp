// NCCL on top of MPI.
//
// - The calls of a group on one stream are one launch. It starts when it is next on its stream, and
//   ends when MPI has moved its data (host/order.h says when that is tried).
// - Launches of one communicator start in the order in which they were enqueued. All launches do so
//   if NCCL_LAUNCH_ORDER_IMPLICIT is 1 and the version is 2.26 or later ("prevents deadlocks by
//   ordering launches by the order of the host's calls", NCCL user guide, environment variables).
// - Sums are taken in rank order; those of bf16 are rounded after each rank, as on a ring.
// - A rank must not wait by other means for a rank that has not reached the same collectives yet.
#include "nccl.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda_bf16.h"
#include "host/memory.h"

struct ncclComm {
  MPI_Comm mpi = MPI_COMM_NULL;
  int rank = 0, size = 1, device = 0;
  bool blocking = true, alive = true;
  bool in_progress = false;  // a call of a non-blocking communicator has not ended
  int channels = 0;          // of collectives
  int pair_channels = 0;
  std::map<int, void*> connections = {};  // memory by Connection
};

namespace {

using namespace sy::cuda_host;

std::string last_error;
int async_error = ncclSuccess, next_error = ncclSuccess;
int launches_before_error = 0;

// ---- calls ----

struct Type {
  ncclDataType_t nccl;
  std::size_t bytes;
};
constexpr Type types[] = {{ncclInt8, 1},    {ncclUint8, 1},   {ncclInt32, 4},   {ncclInt64, 8},
                          {ncclFloat32, 4}, {ncclFloat64, 8}, {ncclBfloat16, 2}};
std::size_t size_of(ncclDataType_t type) {
  for (const Type& t : types)
    if (t.nccl == type) return t.bytes;
  mistake("NCCL with type {}", static_cast<int>(type));
}

enum class Kind { all_reduce, reduce, reduce_scatter, all_gather, broadcast, send, receive };
constexpr const char* names[] = {"ncclAllReduce", "ncclReduce", "ncclReduceScatter", "ncclAllGather",
                                 "ncclBroadcast", "ncclSend",   "ncclRecv"};

struct Call {
  Kind kind;
  ncclComm_t comm;
  cudaStream_t stream;
  Where where;
  // nullptr if this rank sends nothing, or receives nothing.
  const void* send;
  void* receive;
  std::size_t count;  // elements; of one rank's block if the sides differ
  ncclDataType_t type;
  ncclRedOp_t op = ncclSum;
  int peer = 0;

  Operation operation = {};
  std::vector<std::byte> contributions = {};  // the data of all ranks, in rank order

  std::size_t bytes() const { return count * size_of(type); }
  std::size_t size() const { return static_cast<std::size_t>(comm->size); }
  std::size_t send_bytes() const { return bytes() * (kind == Kind::reduce_scatter ? size() : 1); }
  std::size_t receive_bytes() const { return bytes() * (kind == Kind::all_gather ? size() : 1); }
  bool reduces() const { return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter; }
  // True if both sides are the same memory, in the way that NCCL allows.
  bool in_place() const {
    const auto* from = static_cast<const std::byte*>(send);
    const auto* to = static_cast<const std::byte*>(receive);
    const std::size_t mine = bytes() * static_cast<std::size_t>(comm->rank);
    switch (kind) {
      case Kind::all_gather:
        return from == to + mine;
      case Kind::reduce_scatter:
        return to == from + mine;
      default:
        return from == to;
    }
  }
};

// ---- memory of connections ----
// NCCL connects the ranks of a communicator when it first uses an algorithm, with buffers for each
// channel. It connects pairs of ranks this way in all versions, and collectives since 2.22.

enum class Connection { tree, ring, pairs };
constexpr std::size_t tree_bytes = std::size_t{1} << 20;  // smaller all-reduces use trees
std::size_t channel_bytes = std::size_t{1} << 20;

Connection connection_of(const Call& call) {
  if (call.kind == Kind::send || call.kind == Kind::receive) return Connection::pairs;
  return call.kind == Kind::all_reduce && call.bytes() < tree_bytes ? Connection::tree : Connection::ring;
}
// Connects the ranks of a call at its first use. Returns false if the device has too little memory.
bool connect(const Call& call) {
  if (call.comm->size == 1) return true;
  const Connection kind = connection_of(call);
  void*& memory = call.comm->connections[static_cast<int>(kind)];
  if (memory) return true;
  const int channels = kind == Connection::pairs ? call.comm->pair_channels : call.comm->channels;
  const std::size_t bytes = channel_bytes * static_cast<std::size_t>(channels);
  memory = allocate(bytes);
  if (memory) counter_values.library_bytes += static_cast<std::int64_t>(bytes);
  return memory != nullptr;
}

// Integer in the environment, or `otherwise` if it is not set.
int number(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value ? std::atoi(value) : otherwise;
}

std::vector<Call> group;  // calls until the outermost ncclGroupEnd
std::vector<Call> later;  // calls of non-blocking communicators until ncclCommGetAsyncError
int depth = 0;

bool overlap(const void* a, std::size_t bytes_a, const void* b, std::size_t bytes_b) {
  return a && b && static_cast<const std::byte*>(a) < static_cast<const std::byte*>(b) + bytes_b &&
         static_cast<const std::byte*>(b) < static_cast<const std::byte*>(a) + bytes_a;
}

// Reports buffers of a group that overlap. Its calls run at the same time, so no call may touch
// memory that another one receives.
void check_apart(const std::vector<Call>& calls) {
  for (const Call& a : calls)
    for (const Call& b : calls) {
      const bool same = &a == &b;
      if ((overlap(a.receive, a.receive_bytes(), b.send, b.send_bytes()) && !(same && a.in_place())) ||
          (!same && overlap(a.receive, a.receive_bytes(), b.receive, b.receive_bytes())))
        mistake("{} at {} receives what {} at {} uses, in one group", names[static_cast<int>(a.kind)], text(a.where),
                names[static_cast<int>(b.kind)], text(b.where));
    }
}

template <class T, class Sum>
void reduce_as(const Call& call, std::size_t contributions) {
  const auto combine = [&](Sum a, Sum b) -> Sum {
    switch (call.op) {
      case ncclSum:
        return a + b;
      case ncclMax:
        return std::max(a, b);
      case ncclMin:
        return std::min(a, b);
      default:
        mistake("{} at {} with operation {}", names[static_cast<int>(call.kind)], text(call.where),
                static_cast<int>(call.op));
    }
  };
  const auto* from = reinterpret_cast<const T*>(call.contributions.data());
  auto* to = static_cast<T*>(call.receive);
  for (std::size_t i = 0; i < call.count; ++i) {
    Sum sum = from[i];
    for (std::size_t r = 1; r < contributions; ++r)
      sum = static_cast<Sum>(static_cast<T>(combine(sum, from[r * call.count + i])));
    to[i] = static_cast<T>(sum);
  }
}

void reduce(const Call& call) {
  switch (call.type) {
    case ncclFloat32:
      return reduce_as<float, float>(call, call.size());
    case ncclFloat64:
      return reduce_as<double, double>(call, call.size());
    case ncclInt32:
      return reduce_as<std::int32_t, std::int32_t>(call, call.size());
    case ncclInt64:
      return reduce_as<std::int64_t, std::int64_t>(call, call.size());
    case ncclBfloat16:
      return reduce_as<__nv_bfloat16, float>(call, call.size());
    default:
      mistake("{} at {} of bytes", names[static_cast<int>(call.kind)], text(call.where));
  }
}

// Starts the transfer of one call.
MPI_Request start(Call& call) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (call.bytes() > std::numeric_limits<int>::max()) mistake("{} bytes by NCCL on the host", call.bytes());
  const int n = static_cast<int>(call.bytes());
  const MPI_Comm mpi = call.comm->mpi;
  const bool is_root = call.comm->rank == call.peer;
  if (call.reduces() && (call.kind != Kind::reduce || is_root)) call.contributions.resize(call.bytes() * call.size());
  switch (call.kind) {
    case Kind::all_reduce:
      MPI_Iallgather(call.send, n, MPI_BYTE, call.contributions.data(), n, MPI_BYTE, mpi, &request);
      break;
    case Kind::reduce:
      MPI_Igather(call.send, n, MPI_BYTE, call.contributions.data(), n, MPI_BYTE, call.peer, mpi, &request);
      break;
    case Kind::reduce_scatter:
      MPI_Ialltoall(call.send, n, MPI_BYTE, call.contributions.data(), n, MPI_BYTE, mpi, &request);
      break;
    case Kind::all_gather:
      MPI_Iallgather(call.in_place() ? MPI_IN_PLACE : call.send, n, MPI_BYTE, call.receive, n, MPI_BYTE, mpi, &request);
      break;
    case Kind::broadcast:
      if (is_root && call.send != call.receive) std::memcpy(call.receive, call.send, call.bytes());
      MPI_Ibcast(call.receive, n, MPI_BYTE, call.peer, mpi, &request);
      break;
    case Kind::send:
      MPI_Isend(call.send, n, MPI_BYTE, call.peer, 0, mpi, &request);
      break;
    case Kind::receive:
      MPI_Irecv(call.receive, n, MPI_BYTE, call.peer, 0, mpi, &request);
      break;
  }
  return request;
}

// The calls of one group on one stream.
struct Launch {
  std::vector<Call> calls;
  std::vector<MPI_Request> requests = {};
  bool started = false;
};
std::deque<std::shared_ptr<Launch>> not_started;  // in the order of the host's calls
int under_way = 0;
int version = number("CUDA_HOST_NCCL_VERSION", NCCL_VERSION_CODE);

bool in_order_of_calls() {
  const char* const wanted = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return version >= 22600 && wanted && std::string_view(wanted) == "1";
}

// Returns the stream of a launch that must start before this one, or nullptr.
Stream* starts_before(const Launch& launch) {
  if (launch.started) return nullptr;
  for (const auto& earlier : not_started) {
    if (earlier.get() == &launch) return nullptr;
    const bool one_comm = std::any_of(launch.calls.begin(), launch.calls.end(), [&](const Call& a) {
      return std::any_of(earlier->calls.begin(), earlier->calls.end(), [&](const Call& b) { return a.comm == b.comm; });
    });
    if (in_order_of_calls() || one_comm) return earlier->calls.front().stream;
  }
  return nullptr;
}

void start(Launch& launch) {
  launch.started = true;
  if (launches_before_error == 0)
    async_error = next_error;
  else
    --launches_before_error;
  ++counter_values.nccl_launches;
  std::erase_if(not_started, [&](const auto& l) { return l.get() == &launch; });
  std::vector<Call>& calls = launch.calls;
  for (Call& call : calls) {
    if (!call.comm->alive)
      mistake("{} at {} of a communicator that is no more", names[static_cast<int>(call.kind)], text(call.where));
    call.operation = start_operation(call.stream, names[static_cast<int>(call.kind)], call.where);
    if (call.send) read_range(call.operation, call.send, call.send_bytes(), "what is sent");
    if (call.receive) write_range(call.operation, call.receive, call.receive_bytes(), "what is received");
    // The received memory keeps its content.
    if (async_error != ncclSuccess) hang(call.operation, call.comm);
  }
  if (async_error != ncclSuccess) return;
  for (Call& call : calls) {
    launch.requests.push_back(start(call));
    if (call.kind == Kind::reduce) ++counter_values.reduces;
  }
  counter_values.collectives_at_once = std::max<std::int64_t>(counter_values.collectives_at_once, ++under_way);
}

// Starts the launch if it has not started. Returns true if it has ended.
bool run(Launch& launch) {
  if (!launch.started) start(launch);
  if (launch.requests.empty()) return true;  // the launch hangs
  const std::vector<Call>& calls = launch.calls;
  std::vector<MPI_Status> states(calls.size());
  int ended = 0;
  MPI_Testall(static_cast<int>(launch.requests.size()), launch.requests.data(), &ended, states.data());
  if (!ended) return false;
  --under_way;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    if (call.reduces() && call.receive) reduce(call);
    int received = 0;
    if (call.kind != Kind::receive) continue;
    MPI_Get_count(&states[i], MPI_BYTE, &received);
    if (static_cast<std::size_t>(received) != call.bytes())
      mistake("{} waits for {} bytes from rank {}, which sends {}", text(call.operation), call.bytes(), call.peer,
              received);
  }
  return true;
}

void give(std::vector<Call> calls) {
  check_apart(calls);
  while (!calls.empty()) {
    const Stream* const stream = calls.front().stream;
    const auto others =
        std::stable_partition(calls.begin(), calls.end(), [&](const Call& c) { return c.stream == stream; });
    const auto launch = std::make_shared<Launch>(Launch{{calls.begin(), others}});
    calls.erase(calls.begin(), others);
    not_started.push_back(launch);
    try {
      run_or_keep(
          launch->calls.front().stream, [launch] { return run(*launch); }, [launch] { return starts_before(*launch); });
    } catch (...) {
      std::erase(not_started, launch);
      throw;
    }
  }
}

ncclResult_t enqueue(Call call) {
  if (call.comm == nullptr) return ncclInvalidArgument;
  if (call.peer < 0 || call.peer >= call.comm->size) return ncclInvalidArgument;
  if (call.comm->in_progress)
    mistake("{} at {} while another call of its communicator is in progress", names[static_cast<int>(call.kind)],
            text(call.where));
  // The first use of a connection allocates memory, which a capture does not allow.
  if (captures() > 0)
    mistake("{} at {} while a stream is being captured", names[static_cast<int>(call.kind)], text(call.where));
  if (!connect(call)) {
    last_error = "Failed to CUDA calloc memory for a connection: out of memory";
    return ncclUnhandledCudaError;
  }
  ncclGroupStart();
  group.push_back(std::move(call));
  return ncclGroupEnd();
}

// ---- communicators ----

struct Id {
  char magic[8];
  // The rank of MPI_COMM_WORLD that made the id, which is a member, and the number of ids it had
  // made before.
  int root, number;
};
constexpr char magic[8] = "sy-nccl";

// Exchanges the ranks of all members through the root of the id. Returns the world rank of each.
std::vector<int> members(const Id& id, int ranks, int rank) {
  const int tag = 20000 + id.number % 10000;
  int world_rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  std::vector<int> world(static_cast<std::size_t>(ranks));
  const std::array mine{rank, world_rank};
  if (world_rank != id.root) {
    MPI_Send(mine.data(), 2, MPI_INT, id.root, tag, MPI_COMM_WORLD);
    MPI_Recv(world.data(), ranks, MPI_INT, id.root, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return world;
  }
  world[static_cast<std::size_t>(rank)] = world_rank;
  for (int i = 1; i < ranks; ++i) {
    std::array<int, 2> other{};
    MPI_Recv(other.data(), 2, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    world[static_cast<std::size_t>(other[0])] = other[1];
  }
  for (int r : world)
    if (r != world_rank) MPI_Send(world.data(), ranks, MPI_INT, r, tag, MPI_COMM_WORLD);
  return world;
}

// True if two ranks use one device of one host, which NCCL refuses. NCCL_HOSTID replaces the name
// of the host.
bool share_a_device(const ncclComm& comm) {
  std::array<char, 256> mine{};
  const char* named = std::getenv("NCCL_HOSTID");
  std::string host(mine.size(), '\0');
  gethostname(host.data(), host.size());
  fmt::format_to_n(mine.data(), mine.size() - 1, "{} {}", comm.device, named ? named : host.c_str());
  std::vector<std::array<char, 256>> all(static_cast<std::size_t>(comm.size));
  MPI_Allgather(mine.data(), sizeof mine, MPI_CHAR, all.data(), sizeof mine, MPI_CHAR, comm.mpi);
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) != all.end();
}

std::vector<std::unique_ptr<ncclComm>> comms;

ncclResult_t progress(ncclComm_t comm) {
  if (comm->blocking) return ncclSuccess;
  comm->in_progress = true;
  return ncclInProgress;
}

// Makes a communicator of the ranks of `mpi`, which it owns.
ncclResult_t make_comm(MPI_Comm mpi, const ncclConfig_t* config, ncclComm_t* comm) {
  auto made = std::make_unique<ncclComm>();
  made->mpi = mpi;
  MPI_Comm_rank(mpi, &made->rank);
  MPI_Comm_size(mpi, &made->size);
  made->blocking = config == nullptr || config->blocking != 0;
  cudaGetDevice(&made->device);
  const int asked = config && config->maxCTAs != NCCL_CONFIG_UNDEF_INT ? config->maxCTAs : 32;
  made->channels = std::min(number("NCCL_MAX_CTAS", asked), number("NCCL_MAX_NCHANNELS", 32));
  made->pair_channels = number("NCCL_MAX_P2P_NCHANNELS", 32);
  if (share_a_device(*made)) {
    MPI_Comm_free(&made->mpi);
    last_error = "Duplicate GPU detected";
    return ncclInvalidUsage;
  }
  ++counter_values.nccl_comms;
  *comm = comms.emplace_back(std::move(made)).get();
  return progress(*comm);
}

// Ends a communicator. If `together` (ncclCommDestroy), all ranks free the MPI communicator;
// ncclCommAbort does not free it.
ncclResult_t end(ncclComm_t comm, bool together) {
  if (comm == nullptr || !comm->alive) return ncclInvalidArgument;
  if (together) finish_all();
  comm->alive = false;
  for (auto& [kind, memory] : comm->connections)
    if (memory) release(memory);
  comm->connections.clear();
  if (together) MPI_Comm_free(&comm->mpi);
  return ncclSuccess;
}

}  // namespace

namespace sy::cuda_host {

void set_nccl_error(int result, int launches) {
  async_error = launches == 0 ? result : ncclSuccess;
  next_error = result;
  launches_before_error = launches;
  if (result == ncclSuccess)
    for (const auto& comm : comms) end_hung(comm.get());
}

void set_nccl_version(int code) {
  version = code;
}

void set_nccl_channel_bytes(std::size_t bytes) {
  channel_bytes = bytes;
}

void forget_collectives() {
  counter_values.collectives_at_once = 0;
}

}  // namespace sy::cuda_host

ncclResult_t ncclGetVersion(int* result) {
  *result = version;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* texts[] = {"no error",
                                   "unhandled cuda error",
                                   "unhandled system error",
                                   "internal error",
                                   "invalid argument",
                                   "invalid usage",
                                   "remote process exited or there was a network error",
                                   "NCCL operation in progress"};
  return texts[static_cast<int>(result)];
}

const char* ncclGetLastError(ncclComm_t) {
  return last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int ids = 0;
  Id made{{}, 0, ids++};
  std::memcpy(made.magic, magic, sizeof magic);
  MPI_Comm_rank(MPI_COMM_WORLD, &made.root);
  *id = {};
  std::memcpy(id->internal, &made, sizeof made);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId unique, int rank, ncclConfig_t* config) {
  Id id;
  std::memcpy(&id, unique.internal, sizeof id);
  if (std::memcmp(id.magic, magic, sizeof magic) != 0 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  const std::vector<int> world = members(id, ranks, rank);
  MPI_Group everyone, group_of_ranks;
  MPI_Comm_group(MPI_COMM_WORLD, &everyone);
  MPI_Group_incl(everyone, ranks, world.data(), &group_of_ranks);
  MPI_Comm mpi = MPI_COMM_NULL;
  MPI_Comm_create_group(MPI_COMM_WORLD, group_of_ranks, 20000 + id.number % 10000, &mpi);
  MPI_Group_free(&everyone);
  MPI_Group_free(&group_of_ranks);
  return make_comm(mpi, config, comm);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  if (comm == nullptr || !comm->alive || color < NCCL_SPLIT_NOCOLOR) return ncclInvalidArgument;
  finish_all();  // no operation of the parent may be in flight
  MPI_Comm mpi = MPI_COMM_NULL;
  MPI_Comm_split(comm->mpi, color == NCCL_SPLIT_NOCOLOR ? MPI_UNDEFINED : color, key, &mpi);
  *made = nullptr;
  return mpi == MPI_COMM_NULL ? ncclSuccess : make_comm(mpi, config, made);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return end(comm, true);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  end_hung(comm);
  return end(comm, false);
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* ranks) {
  *ranks = comm->size;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}

// A non-blocking call is in progress at the first query, and has ended at the second.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (std::exchange(comm->in_progress, false)) {
    give(std::exchange(later, {}));
    *error = ncclInProgress;
  } else {
    *error = static_cast<ncclResult_t>(async_error);
  }
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (depth == 0) return ncclInvalidUsage;
  if (--depth > 0) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  for (const Call& call : group) result = std::max(result, progress(call.comm));
  if (result == ncclSuccess)
    give(std::exchange(group, {}));
  else
    later.insert(later.end(), group.begin(), group.end()), group.clear();
  return result;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream, Where where) {
  return enqueue({Kind::all_reduce, comm, stream, where, send, receive, count, type, op});
}

ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream, Where where) {
  if (comm && comm->rank != root) receive = nullptr;
  return enqueue({Kind::reduce, comm, stream, where, send, receive, count, type, op, root});
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, Where where) {
  return enqueue({Kind::reduce_scatter, comm, stream, where, send, receive, receive_count, type, op});
}

ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream, Where where) {
  return enqueue({Kind::all_gather, comm, stream, where, send, receive, send_count, type});
}

ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream, Where where) {
  if (comm && comm->rank != root) send = nullptr;
  return enqueue({Kind::broadcast, comm, stream, where, send, receive, count, type, ncclSum, root});
}

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream, Where where) {
  ++counter_values.nccl_sends;
  return enqueue({Kind::send, comm, stream, where, send, nullptr, count, type, ncclSum, peer});
}

ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream, Where where) {
  return enqueue({Kind::receive, comm, stream, where, nullptr, receive, count, type, ncclSum, peer});
}

// ---- MPI on the host ----

// A real device continues while its host waits in MPI; this one runs only when the host calls it.
// All operations therefore run before the host waits here, because other ranks may wait for them.
int MPI_Barrier(MPI_Comm comm) {
  finish_all();
  return PMPI_Barrier(comm);
}
int MPI_Bcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  finish_all();
  return PMPI_Bcast(buffer, count, type, root, comm);
}
int MPI_Allgather(const void* send, int send_count, MPI_Datatype send_type, void* receive, int receive_count,
                  MPI_Datatype receive_type, MPI_Comm comm) {
  finish_all();
  return PMPI_Allgather(send, send_count, send_type, receive, receive_count, receive_type, comm);
}
int MPI_Waitall(int count, MPI_Request requests[], MPI_Status states[]) {
  finish_all();
  return PMPI_Waitall(count, requests, states);
}
int MPI_Iprobe(int source, int tag, MPI_Comm comm, int* there, MPI_Status* state) {
  finish_all();
  return PMPI_Iprobe(source, tag, comm, there, state);
}

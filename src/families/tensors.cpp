#include "src/families/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/params/block_specs.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"

namespace sy {
namespace {

// ---- views (TensorRow::view) ----

// A dimension, or a factor of one in parentheses: "H", "+1", "r:n".
struct Term {
  std::string name, length;   // of "r:n": "r" and "n"; otherwise `length` is empty
  bool concatenated = false;  // "+"
};
using Dimension = std::vector<Term>;
struct ViewText {
  std::vector<Dimension> param, tensor;
};

std::vector<Dimension> parse_side(std::string_view text) {
  std::vector<Dimension> dims;
  bool grouped = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" ()", i), text.size());
    if (end == i) {
      if (text[i] == '(') dims.emplace_back();
      if (text[i] != ' ') grouped = text[i] == '(';
      ++i;
      continue;
    }
    Term term{std::string(text.substr(i, end - i)), {}};
    if (term.name.starts_with('+')) term = {term.name.substr(1), {}, true};
    if (const auto colon = term.name.find(':'); colon != term.name.npos)
      term = {term.name.substr(0, colon), term.name.substr(colon + 1), term.concatenated};
    if (!grouped) dims.emplace_back();
    dims.back().push_back(std::move(term));
    i = end;
  }
  return dims;
}

ViewText parse_view(std::string_view view) {
  constexpr std::string_view arrow = "->";
  const std::size_t at = view.find(arrow);
  return {parse_side(view.substr(0, at)), parse_side(view.substr(at + arrow.size()))};
}

// NamedSizes of letters that the shapes of parameters do not determine.
NamedSizes sizes_of_block(const BlockSpec& block) {
  NamedSizes sizes;
  block.for_each_branch([&](const BranchSpec& branch) {
    sizes.merge(std::visit([](const auto& spec) { return sizes_of(spec); }, branch.sublayer));
  });
  return sizes;
}

// ---- from rows to tensors ----

// A row of a table without "*" and "#" in its names.
struct NamedRow {
  std::string hf_name, param;
  std::string_view view, only_if;
  double constant;
};

// Returns the row, or those of the weight and of the bias. table: index of its table.
std::vector<NamedRow> named_rows(const TensorRow& row, std::size_t table) {
  std::vector<NamedRow> rows{{std::string(row.hf_name), std::string(row.param), row.view, row.only_if, row.constant}};
  replace_all(rows[0].hf_name, "#", std::to_string(table));
  if (!row.hf_name.ends_with('*')) return rows;
  rows.push_back(rows[0]);
  if (const std::size_t end = row.view.find(';'); end != row.view.npos) {
    rows[0].view = row.view.substr(0, end);
    rows[1].view = row.view.substr(end + 1);
  }
  for (const bool bias : {false, true})
    for (std::string* name : {&rows[bias].hf_name, &rows[bias].param})
      replace_all(*name, "*", bias ? "bias" : "weight");
  return rows;
}

// A row of a table, applied to one layer or to one of its experts.
struct AppliedRow {
  std::optional<std::size_t> param;
  const ParamSpec* spec = nullptr;
  ViewText view;
  Index expert = 0;
  NamedSizes sizes;
  bool is_copy = false;
  double constant = 0;
};

Index size_of_term(const Term& term, const NamedSizes& sizes, const std::string& tensor) {
  if (const auto n = parse_number<Index>(term.name)) return *n;
  const auto it = sizes.find(term.name);
  SY_ASSERT(it != sizes.end(), "{}: the size of {} is not known", tensor, term.name);
  return it->second;
}

// Adds to row.sizes the sizes of letters that follow from the parameter's shape.
void infer_sizes(AppliedRow& row, const std::string& tensor) {
  if (!row.spec) return;
  SY_ASSERT(row.view.param.size() == static_cast<std::size_t>(row.spec->shape.size()), "{}: {} is {}", tensor,
            row.spec->name, row.spec->shape.str());
  for (std::size_t d = 0; d < row.view.param.size(); ++d) {
    Index rest = row.spec->shape[static_cast<int>(d)];
    const Dimension& dim = row.view.param[d];
    if (dim.size() == 1 && (dim[0].name == "e" || parse_number<Index>(dim[0].name) || !dim[0].length.empty())) continue;
    for (std::size_t j = 0; j + 1 < dim.size(); ++j) rest /= size_of_term(dim[j], row.sizes, tensor);
    row.sizes[dim.back().name] = rest;
  }
}

FileTensor file_tensor(const std::string& name, std::vector<AppliedRow>& rows) {
  for (AppliedRow& row : rows) infer_sizes(row, name);
  for (AppliedRow& row : rows)  // a filler takes the sizes of the other rows
    for (const AppliedRow& other : rows) row.sizes.insert(other.sizes.begin(), other.sizes.end());

  // Dimensions of the tensor, with each factor of parentheses as a dimension of its own. The size
  // of the concatenated dimension is the sum over the rows.
  std::vector<Index> dims;
  std::vector<Index> begins;  // offset of each row along the concatenated dimension
  std::optional<std::size_t> concat_dim;
  for (const AppliedRow& row : rows) {
    std::vector<Index> row_dims;
    for (const Dimension& dim : row.view.tensor)
      for (const Term& term : dim) {
        if (term.concatenated) concat_dim = row_dims.size();
        row_dims.push_back(size_of_term(term, row.sizes, name));
      }
    if (dims.empty()) {
      dims = row_dims;
      begins.push_back(0);
      continue;
    }
    SY_ASSERT(concat_dim && row_dims.size() == dims.size(), "{}: several parameters, and no + that joins them", name);
    for (std::size_t d = 0; d < dims.size(); ++d)
      SY_ASSERT(d == *concat_dim || row_dims[d] == dims[d], "{}: dimension {} is {} and {}", name, d, dims[d],
                row_dims[d]);
    begins.push_back(dims[*concat_dim]);
    dims[*concat_dim] += row_dims[*concat_dim];
  }
  std::vector<Index> strides(dims.size(), 1);
  for (std::size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];

  FileTensor tensor{name, {}, {}, rows.front().is_copy, rows.front().constant};
  std::size_t d = 0;
  for (const Dimension& dim : rows.front().view.tensor) {
    Index size = 1;
    for (std::size_t j = 0; j < dim.size(); ++j) size *= dims[d++];
    tensor.shape.push_back(size);
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const AppliedRow& row = rows[r];
    std::map<std::string, Index> stride_of;
    std::size_t t = 0;
    for (const Dimension& dim : row.view.tensor)
      for (const Term& term : dim) stride_of[term.name] = strides[t++];
    TensorMapping mapping{row.param, {}, concat_dim ? begins[r] * strides[*concat_dim] : 0};
    for (std::size_t o = 0; row.spec && o < row.view.param.size(); ++o) {
      const Dimension& dim = row.view.param[o];
      const Index size = row.spec->shape[static_cast<int>(o)];
      MappedDim out{{0, size}, {}};
      const auto only = dim[0].name == "e" ? std::optional(row.expert) : parse_number<Index>(dim[0].name);
      if (!dim[0].length.empty()) {
        const Index begin = size_of_term({dim[0].name, {}}, row.sizes, name);
        const Index n = size_of_term({dim[0].length, {}}, row.sizes, name);
        out = {{begin, begin + n}, {{n, stride_of.at(dim[0].length)}}};
      } else if (dim.size() == 1 && only) {
        out = {{*only, *only + 1}, {{1, 0}}};
      } else {
        for (const Term& term : dim)
          out.factors.push_back({size_of_term(term, row.sizes, name), stride_of.at(term.name)});
      }
      mapping.dims.push_back(std::move(out));
    }
    tensor.mappings.push_back(std::move(mapping));
  }
  return tensor;
}

}  // namespace

Index MappedDim::offset(Index i) const {
  Index at = 0, rest = i - range.begin;
  for (std::size_t j = factors.size(); j-- > 0;) {
    at += rest % factors[j].size * factors[j].stride;
    rest /= factors[j].size;
  }
  return at;
}

Index FileTensor::elements() const {
  Index n = 1;
  for (const Index d : shape) n *= d;
  return n;
}

std::vector<ParamSpec> model_tensors(const Config& config, Index vocab) {
  std::vector<ParamSpec> all = param_specs(config, vocab);
  if (config.moe.bias_update_rate > 0) {
    const std::vector<BlockSpec> blocks = block_specs(config);
    for (std::size_t layer = 0; layer < blocks.size(); ++layer)
      if (const MoeSpec* moe = blocks[layer].find<MoeSpec>()) {
        const auto index = static_cast<Index>(layer);
        all.push_back({.name = config.layer_prefix(index) + std::string(selection_bias),
                       .shape = {moe->experts},
                       .init = {InitKind::zeros, 0},
                       .layer = index});
      }
  }
  return all;
}

FamilyTensors family_tensors(const Family& family, const Config& config, const std::vector<ParamSpec>& params,
                             std::string_view base) {
  std::map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < params.size(); ++i) by_name[params[i].name] = i;
  std::vector<bool> mapped(params.size());
  std::vector<std::string> order;
  std::map<std::string, std::vector<AppliedRow>> rows;
  FamilyTensors out;

  const auto apply = [&](const NamedRow& row, const std::string& hf_prefix, const std::string& param_prefix,
                         const NamedSizes& sizes) {
    if (const auto equals = row.only_if.find('='); equals != row.only_if.npos) {
      if (value_of(config, row.only_if.substr(0, equals)) != row.only_if.substr(equals + 1)) return;
    } else if (!row.only_if.empty()) {
      const bool absent = row.only_if.starts_with('!');
      const auto other = by_name.find(param_prefix + std::string(row.only_if.substr(absent ? 1 : 0)));
      if ((other == by_name.end()) != absent) return;
    }
    AppliedRow applied{{}, nullptr, {}, 0, sizes, row.param.starts_with('/'), row.constant};
    if (!row.param.empty()) {
      const auto it = by_name.find(applied.is_copy ? row.param.substr(1) : param_prefix + row.param);
      if (it == by_name.end()) return;  // the model has no such parameter
      applied.param = it->second;
      applied.spec = &params[it->second];
      mapped[it->second] = true;
      if (row.hf_name.empty()) return out.ones.push_back(it->second);
    }
    applied.view = parse_view(row.view);
    const auto add = [&](const std::string& name) {
      std::vector<AppliedRow>& of_tensor = rows[name];
      if (of_tensor.empty()) order.push_back(name);
      of_tensor.push_back(applied);
    };
    const std::string name = row.hf_name.starts_with('/') ? row.hf_name.substr(1) : hf_prefix + row.hf_name;
    if (applied.view.param.empty() || applied.view.param[0][0].name != "e") return add(name);
    const std::size_t at = name.find("{}");
    for (Index e = 0; e < applied.spec->shape[0]; ++e) {
      applied.expert = e;
      add(name.substr(0, at) + std::to_string(e) + name.substr(at + 2));
    }
  };
  const auto apply_tables = [&](const std::vector<std::span<const TensorRow>>& tables, const std::string& hf_prefix,
                                const std::string& param_prefix, const NamedSizes& sizes) {
    for (std::size_t table = 0; table < tables.size(); ++table)
      for (const TensorRow& row : tables[table])
        for (const NamedRow& named : named_rows(row, table)) apply(named, hf_prefix, param_prefix, sizes);
  };
  const std::vector<BlockSpec> blocks = block_specs(config);
  NamedSizes model_sizes = blocks.empty() ? NamedSizes{} : sizes_of_block(blocks.front());
  model_sizes["V"] = params[by_name.at("embedding.weight")].shape[0];
  apply_tables(family.model_rows, std::string(base), "", model_sizes);
  if (config.stacks.empty() != family.decoder_layer_prefix.empty())
    bad_input("models of {} are {}encoder-decoders: the model is not one of this family", family.name,
              family.decoder_layer_prefix.empty() ? "no " : "");
  for (std::size_t layer = 0; layer < blocks.size(); ++layer) {
    const auto first = static_cast<std::size_t>(config.encoder_layers());
    const bool in_decoder = !config.stacks.empty() && layer >= first;
    const std::string prefix =
        std::string(base) + (in_decoder ? fmt::format(fmt::runtime(family.decoder_layer_prefix), layer - first)
                                        : fmt::format(fmt::runtime(family.layer_prefix), layer));
    apply_tables(in_decoder ? family.decoder_layer_rows : family.layer_rows, prefix,
                 config.layer_prefix(static_cast<Index>(layer)), sizes_of_block(blocks[layer]));
  }
  std::vector<std::string> unmapped;
  for (std::size_t i = 0; i < params.size(); ++i)
    if (!mapped[i]) unmapped.push_back(params[i].name);
  if (!unmapped.empty()) {
    const std::size_t count = unmapped.size();
    unmapped.resize(std::min<std::size_t>(count, 3));
    bad_input("models of {} have no {}{}: the model is not one of this family", family.name, join(unmapped, ", "),
              count > 3 ? fmt::format(" and {} more", count - 3) : "");
  }
  for (const std::string& name : order) out.tensors.push_back(file_tensor(name, rows[name]));
  return out;
}

Index for_mapped_ranges(const TensorMapping& mapping, const Box& box,
                        const std::function<void(Index, Index, Index, Index)>& visit) {
  const int n = box.size.size();
  SY_ASSERT(static_cast<std::size_t>(n) == mapping.dims.size() && n > 0, "a box of {} dimensions", n);
  // Per dimension, the indices that are both in the box and in the mapping.
  std::vector<Range> overlap(static_cast<std::size_t>(n));
  for (int d = 0; d < n; ++d) {
    overlap[d] = {std::max(box.begin[d], mapping.dims[d].range.begin),
                  std::min(box.begin[d] + box.size[d], mapping.dims[d].range.end)};
    if (overlap[d].size() <= 0) return 0;
  }
  const MappedDim& last = mapping.dims[static_cast<std::size_t>(n - 1)];
  const Factor inner = last.factors.back();
  Index total = 0;
  Shape at;  // current indices of all dimensions except the last
  for (int d = 0; d + 1 < n; ++d) at.push_back(overlap[d].begin);
  for (;;) {
    Index offset = mapping.base, row = 0;
    for (int d = 0; d + 1 < n; ++d) {
      offset += mapping.dims[d].offset(at[d]);
      row = row * box.size[d] + at[d] - box.begin[d];
    }
    const Range& columns = overlap[n - 1];
    for (Index i = columns.begin; i < columns.end;) {
      const Index in_factor = (i - last.range.begin) % inner.size,
                  count = std::min(columns.end - i, inner.size - in_factor);
      visit(row * box.size[n - 1] + i - box.begin[n - 1], offset + last.offset(i), inner.stride, count);
      total += count;
      i += count;
    }
    int d = n - 2;
    while (d >= 0 && ++at[d] == overlap[d].end) {
      at[d] = overlap[d].begin;
      --d;
    }
    if (d < 0) return total;
  }
}

}  // namespace sy

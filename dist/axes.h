// Axes of the mesh (dist/mesh.h), and sets of axes as bit masks.
#pragma once

#include <cstdint>
#include <string>

namespace sy {

// Axis of one of the two grids over the ranks of a stage.
// The dense grid is dp x tp, the expert grid edp x ep x etp. In both, the last axis varies fastest.
enum class Axis : std::uint8_t { none = 0, etp = 1, ep = 2, edp = 4, tp = 8, dp = 16 };

// Set of axes.
class Axes {
 public:
  constexpr Axes() = default;
  constexpr Axes(Axis axis) : bits_(static_cast<std::uint8_t>(axis)) {}  // none: the empty set

  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool has(Axes all) const { return (bits_ & all.bits_) == all.bits_; }
  constexpr Axes operator|(Axes more) const { return of(bits_ | more.bits_); }
  constexpr Axes operator&(Axes both) const { return of(bits_ & both.bits_); }
  constexpr Axes operator-(Axes less) const { return of(bits_ & ~less.bits_); }
  bool operator==(const Axes&) const = default;
  // Orders sets with outer axes first: {dp, tp}, {dp}, {tp}, {edp}.
  constexpr bool operator<(Axes other) const { return bits_ > other.bits_; }

  std::string str() const;  // "dp x tp"

 private:
  static constexpr Axes of(int bits) {
    Axes axes;
    axes.bits_ = static_cast<std::uint8_t>(bits);
    return axes;
  }
  std::uint8_t bits_ = 0;
};

constexpr Axes operator|(Axis a, Axis b) {
  return Axes(a) | Axes(b);
}

constexpr Axes dense_grid = Axis::dp | Axis::tp, expert_grid = Axes(Axis::edp) | Axis::ep | Axis::etp;
// Returns the grid that contains these axes; the dense grid for the empty set.
// Asserts that the set has no axes of both grids.
Axes grid_of(Axes axes);

}  // namespace sy

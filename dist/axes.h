// The axes of the mesh (dist/mesh.h), and sets of them as bit masks.
#pragma once

#include <cstdint>
#include <string>

namespace sy {

// The ranks of a stage are dp x tp, and for the experts edp x ep x etp: the two grids. In both, the last axis runs fastest.
enum class Axis : std::uint8_t { none = 0, etp = 1, ep = 2, edp = 4, tp = 8, dp = 16 };

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
  // Sets with the outer axes come first: {dp, tp}, {dp}, {tp}, {edp}.
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
// The grid whose axes these are; the empty set is of the dense one. No set has axes of both.
Axes grid_of(Axes axes);

}  // namespace sy

#include "src/text/table.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace sy {
namespace {

TEST(DisplayWidth, CountsColumnsNotBytes) {
  EXPECT_EQ(display_width(""), 0);
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("Käse"), 4);
  EXPECT_EQ(display_width("日本語"), 6);
  EXPECT_EQ(display_width("▁▂█"), 3);
  EXPECT_EQ(display_width("e\u0301"), 1);                // combining acute accent
  EXPECT_EQ(display_width("\x1b[38;5;12mx\x1b[0m"), 1);  // colour
  EXPECT_EQ(display_width("😀"), 2);
}

TEST(DisplayWidth, CountsIllFormedBytesAsOneColumn) {
  EXPECT_EQ(display_width("a\xff\xfe"), 3);
  EXPECT_EQ(display_width("\xe3\x81"), 2);  // cut off in the middle
  EXPECT_EQ(display_width("\xe3x"), 2);
}

TEST(FitWidth, CutsAtColumns) {
  EXPECT_EQ(fit_width("abcdef", 6), "abcdef");
  EXPECT_EQ(fit_width("abcdef", 4), "abc…");
  EXPECT_EQ(fit_width("日本語", 4), "日…");  // a wide character is not cut
  EXPECT_EQ(fit_width("abc", 1), "…");
  EXPECT_EQ(fit_width("abc", 0), "");
}

TEST(Visible, ReplacesControlCharacters) {
  EXPECT_EQ(visible("a\x1b]0;title\x07z"), "a␛]0;title␇z");
  EXPECT_EQ(visible("a\tb\nc\r\x7f", "\n\t"), "a\tb\nc␍␡");
  EXPECT_EQ(visible(std::string("\0", 1)), "␀");
  EXPECT_EQ(visible("\xc2\x9b"
                    "31m"),
            // U+009B is one character for the two of ESC [.
            "\ufffd31m");
  EXPECT_EQ(visible("\x9b\xff"), "\ufffd\ufffd");
  EXPECT_EQ(visible("Käse 日本 😀"), "Käse 日本 😀");
}

TEST(Visible, HoldsBackIncompleteCharacters) {
  EXPECT_EQ(whole_characters(""), 0u);
  EXPECT_EQ(whole_characters("ab"), 2u);
  EXPECT_EQ(whole_characters("a\xc2"), 1u);
  EXPECT_EQ(whole_characters("a\xf0\x9f\x98"), 1u);
  EXPECT_EQ(whole_characters("a\xf0\x9f\x98\x80"), 5u);
  EXPECT_EQ(whole_characters("\x80\x80\x80\x80"), 4u);  // no byte can begin a character
}

TEST(Table, ReplacesControlCharactersInCells) {
  Table t({"name", "share"}, true);
  t.row({"\x1b[31ma\nb", "\x1b[34m▄\x1b[0m"});
  EXPECT_EQ(t.str(),
            "name      share\n"
            "────────  ─────\n"
            "␛[31ma␊b  \x1b[34m▄\x1b[0m\n");
}

TEST(Table, AlignsNumbersRightAndTextLeft) {
  Table t({"name", "tokens", "loss"});
  t.row({"english", "12345", "1.5"});
  t.row({"日本語", "7", "-10.25"});
  EXPECT_EQ(t.str(),
            "name     tokens    loss\n"
            "───────  ──────  ──────\n"
            "english   12345     1.5\n"
            "日本語        7  -10.25\n");
}

TEST(Table, TreatsDashesAsNumbers) {
  Table t({"a", "long heading", "note"});
  t.row({"1", "-", "-"});
  t.row({"20", "3 %"});
  EXPECT_EQ(t.str(),
            " a  long heading  note\n"
            "──  ────────────  ────\n"
            " 1             -  -\n"
            "20           3 %\n");
}

TEST(Table, PrintsHeaderAndRuleWithoutRows) {
  EXPECT_EQ(Table({"a", "bc"}).str(), "a  bc\n─  ──\n");
}

TEST(Table, RejectsMoreCellsThanHeadings) {
  EXPECT_THROW(Table({"a"}).row({"1", "2"}), std::logic_error);
}

}  // namespace
}  // namespace sy

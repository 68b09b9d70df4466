"""Makes the tables and the golden data by which tokens do not depend on the system's version of Unicode.

    python3 unicode_classes.py --table > ../../src/tokenizers/newer_characters.h
    python3 unicode_classes.py > unicode_classes.json

Needs tokenizers (0.23.3 made both files), whose regular expressions know Unicode 16, and a Python that knows Unicode 14 (3.11),
as PCRE2 10.42 does. perl 5.36, which knows Unicode 14, too, says which characters are alphabetic and so on.
"""

import hashlib
import json
import subprocess
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

assert unicodedata.unidata_version == "14.0.0"
CODES = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
PROPERTIES = ["Alphabetic", "Uppercase", "Lowercase", "Han"]


def members(expression):
    """The characters that match in the library."""
    split, out, step = pre_tokenizers.Split(Regex(expression), "removed"), set(CODES), 1 << 14
    for begin in range(0, len(CODES), step):
        block = CODES[begin : begin + step]
        for _, (first, last) in split.pre_tokenize_str("".join(map(chr, block))):
            out.difference_update(block[first:last])
    return out


def old_members(name):
    """The characters of Unicode 14 that have a property."""
    name = "Script=Han" if name == "Han" else name
    script = "no warnings; for (0..0x10ffff) { next if $_ >= 0xd800 && $_ < 0xe000; print qq($_\\n) if chr($_) =~ /\\p{%s}/ }"
    return set(map(int, subprocess.run(["perl", "-e", script % name], capture_output=True, text=True).stdout.split()))


def categories():
    return {c: name for name in CATEGORIES for c in members(r"\p{%s}" % name)}


def ranges(codes, value=lambda c: None):
    out = []
    for c in sorted(codes):
        if out and out[-1][1] == c - 1 and out[-1][2] == value(c):
            out[-1][1] = c
        else:
            out.append([c, c, value(c)])
    return out


def table():
    now, old = categories(), {c: unicodedata.category(chr(c)) for c in CODES}
    has, had = {p: members(r"\p{%s}" % p) for p in PROPERTIES}, {p: old_members(p) for p in PROPERTIES}

    def kind(c, category, sets):
        return (len(chr(c).encode()), category[c], *(c in sets[p] for p in PROPERTIES))

    stand_ins = {}
    for c in sorted(now):
        if kind(c, now, has) == kind(c, old, had):
            stand_ins.setdefault(kind(c, now, has), c)
    newer = [c for c in now if now[c] != old[c]]
    rows = ranges(newer, lambda c: stand_ins[kind(c, now, has)])
    lower = {c: normalizers.Lowercase().normalize_str(chr(c)) for c in CODES}
    lower = {c: ord(s) for c, s in lower.items() if s != chr(c).lower()}
    digits = pre_tokenizers.Digits(individual_digits=True)
    numeric = [c for c in CODES if c not in now and len(digits.pre_tokenize_str(f"a{chr(c)}a")) == 3]

    def listed(items):
        text = ""
        for i, item in enumerate(items):
            text += ("    " if i % 3 == 0 else " ") + item + ("," if i % 3 < 2 and i + 1 < len(items) else ",\n")
        return text

    print("// Made by tests/golden/unicode_classes.py: characters that an old PCRE2 or ICU does not know.\n#pragma once\n\n// clang-format off\n")
    print("namespace sy {\n")
    print("// Characters that are new in Unicode 15, 15.1 or 16, or have another category, in order.\n"
          "// stand_in is a character of Unicode 14 with the same category, size in UTF-8 and letter case.\n"
          "// Alphabetic characters stand in for such ones, and Han characters for Han characters.")
    print("struct NewerCharacters {\n  char32_t first, last, stand_in;\n};\nconstexpr NewerCharacters newer_characters[] = {")
    print(listed([f"{{0x{a:X}, 0x{b:X}, 0x{s:X}}}" for a, b, s in rows]) + "};\n")
    print("// Numbers (N) of Unicode 17, which `tokenizers` knows in Digits alone.")
    print("struct CharacterRange {\n  char32_t first, last;\n};\nconstexpr CharacterRange newest_numbers[] = {")
    print(listed([f"{{0x{a:X}, 0x{b:X}}}" for a, b, _ in ranges(numeric)]) + "};\n")
    print("// Letters of Unicode 15 to 17 that have a small one: first becomes `lower`, and so on.")
    print("struct NewerCase {\n  char32_t first, last, lower;\n};\nconstexpr NewerCase newer_cases[] = {")
    print(listed([f"{{0x{a:X}, 0x{b:X}, 0x{a + d:X}}}" for a, b, d in ranges(lower, lambda c: lower[c] - c)]) + "};\n")
    print("}  // namespace sy")


# The expressions of GPT-2, Llama 3, GPT-4o and DeepSeek-V3, and the classes of Oniguruma.
SPLITS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek_v3": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "not_letters": r"\P{L}+|[^\p{M}\p{Nd}]+",
    "words": r"\w+",
    "posix": r"[[:alpha:]]+|[[:punct:]]+",
    "posix_case": r"[[:upper:]]+|[[:lower:]]+|[[:alnum:]]+",
    "han": r"\p{Han}+|\p{Lo}+",
}


def golden():
    assigned = [c for c in sorted(categories()) if c < 0xF0000]
    steps = {name: pre_tokenizers.Split(Regex(expression), "isolated") for name, expression in SPLITS.items()}
    steps |= {"digits": pre_tokenizers.Digits(individual_digits=True), "punctuation": pre_tokenizers.Punctuation(),
              "whitespace": pre_tokenizers.Whitespace(), "nfc": normalizers.NFC(), "nfd": normalizers.NFD(),
              "nfkc": normalizers.NFKC(), "nfkd": normalizers.NFKD(), "lowercase": normalizers.Lowercase(),
              "strip_accents": normalizers.StripAccents()}
    blocks = {}
    for c in assigned:
        blocks.setdefault(c // 1024, []).append(chr(c))
    cases = []
    for name, step in steps.items():
        digests = []
        for characters in blocks.values():
            if hasattr(step, "pre_tokenize_str"):
                splits = step.pre_tokenize_str("".join(f"a{c} {c}1" for c in characters))
                made = ",".join(str(len(split.encode())) for split, _ in splits)
            else:
                made = step.normalize_str("".join(f"a\u0345{c}\u0316\u0334 " for c in characters))
            digests.append(hashlib.sha256(made.encode()).hexdigest()[:8])
        cases.append({"name": name, "component": json.loads(step.__getstate__()), "digests": " ".join(digests)})
    listed = [x for a, b, _ in ranges(assigned) for x in (a, b - a)]
    print("{" + f'"assigned":{json.dumps(listed, separators=(",", ":"))},\n"cases":[' +
          ",\n".join(json.dumps(case) for case in cases) + "]}")


if __name__ == "__main__":
    table() if sys.argv[1:] == ["--table"] else golden()

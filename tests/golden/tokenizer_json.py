"""Makes tokenizer_json.json: small tokenizers of every kind, and the tokens of Hugging Face tokenizers for texts of many scripts.

    python3 tokenizer_json.py > tokenizer_json.json
        needs tokenizers (0.23.3 made the file), sentencepiece and protobuf
    python3 tokenizer_json.py --fuzz SWITCHYARD COUNT [TOKENIZER.json ...]
        compares the program's tokens of random texts with those of the library
    python3 tokenizer_json.py --speed SWITCHYARD TEXT [TOKENIZER.json ...]
        compares tokens/s of a text, the library's on one thread, and counts texts that differ

Without files, the last two use the cases. Training breaks some ties at random, so the file differs each time.
A case is a tokenizer.json whose "model" is one of "models". "decoded" is null if it equals the text.
"""

import base64
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time

# Imports must not find the files of this folder.
sys.path = [p for p in sys.path if os.path.abspath(p) != os.path.dirname(os.path.abspath(__file__))]
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import numpy
import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

CORPUS = """A switchyard sends each wagon to its track; this one sends each token to its experts. The wagons don't wait, and
they've 1234567 wheels, 42 brakes and 3.14159 whistles. We'll see: it's what she'd said, isn't it? HELLO World CamelCase
def route(tokens, experts=8):\n    for token in tokens:\n        yield expert_of(token)  # 100 % done\n\n
Größere Wagen rollen über den Ablaufberg hinab, während die Weichen für jeden gestellt werden. Straße, Übergröße, Äpfel.
L'été, la gare était pleine à craquer; où êtes-vous allés ? C'est déjà ça, naïve façade, cœur, garçon.
Кожен вагон їде своєю колією. Каждый вагон идёт по своему пути, и стрелки переводятся быстро.
Κάθε βαγόνι πηγαίνει στη δική του γραμμή, και τα κλειδιά αλλάζουν γρήγορα.
كل عربة تذهب إلى مسارها، والمفاتيح تتحرك بسرعة. כל קרון נוסע למסילה שלו, והמסוטים זזים מהר.
हर डिब्बा अपनी पटरी पर जाता है और काँटे जल्दी बदलते हैं। รถทุกคันไปตามรางของมัน และประแจเปลี่ยนเร็ว
每节车厢都去自己的轨道,道岔很快就换了。貨物列車は自分の線路に行きます。ポイントはすぐに変わります。モーター
모든 화차는 자기 선로로 갑니다. 전철기는 빨리 바뀝니다. 😀 🚂🚃🚃 👩‍🚀 emoji
""" * 2

TEXTS = [
    "", " ", "  ", "\n", "a", "Hello world", " Hello  world   !", "The wagons don't wait: they'VE 1234567 wheels, I'LL see 'tis.",
    "  leading and trailing   ", "tabs\tand\r\nCRLF\r\n\r\n  end\n\n\n", "    def f(x):\n        return x  # y\n",
    "gr\u00f6\u00dfer \u00fcber Stra\u00dfe", "gro\u0308\u00dfer u\u0308ber e\u0301te\u0301 \u00e5 a\u030a \u212b \u1e9b\u0323", "na\u00efve fa\u00e7ade \u0130\u0131 \u01c4 \ufb01 \ufb00 \u2160\u2167 \u00bd \u00b2 \uff21\uff22\uff11",
    "\u039a\u03ac\u03b8\u03b5 \u03b2\u03b1\u03b3\u03cc\u03bd\u03b9, \u039f\u0394\u039f\u03a3 \u1f00\u03c1\u03c7\u03ae", "\u041a\u0430\u0436\u0434\u044b\u0439 \u0432\u0430\u0433\u043e\u043d \u0438\u0434\u0451\u0442 \u0438\u0306 \u0457\u0436\u0430\u043a",
    "\u0643\u0644 \u0639\u0631\u0628\u0629 \u062a\u0630\u0647\u0628\u060c \u0661\u0662\u0663 \u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f", "\u05db\u05dc \u05e7\u05e8\u05d5\u05df \u05e0\u05d5\u05e1\u05e2 \u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",
    "\u0939\u0930 \u0921\u093f\u092c\u094d\u092c\u093e \u0915\u094d\u0937\u0947\u0924\u094d\u0930 \u0967\u0968\u0969\u0964", "\u0e23\u0e16\u0e17\u0e38\u0e01\u0e04\u0e31\u0e19 \u0e01\u0e33\u0e19\u0e49\u0e33 \u0e51\u0e52",
    "\u6bcf\u8282\u8f66\u53a2,\u9053\u5c94\u3002\u4f60\u597d\uff01\u4e16\u754c", "\u8ca8\u7269\u5217\u8eca\u306f\u304c\u30ac\u30ab\u3099\uff76\uff9e\u30e2\u30fc\u30bf\u30fc\u3001\u7dda\u8def",
    "\ubaa8\ub4e0 \ud654\ucc28\ub294 \u1112\u1161\u11ab\uae00", "\U0001f600\U0001f682 \U0001f469\u200d\U0001f680 \U0001f1e9\U0001f1ea \u2764\ufe0f \U0001f44d\U0001f3fd",
    "\u0000\u0001\u001f\u007f\u0085\u200b\u200d\u2028\ufeff\u00a0\u3000\u2003.", "\ufffd \ufffd\ufffd", "\u2581\u2581under \u2581 lower", "a\u0300\u0301\u0302\u0303\u0304 \u0301", " " * 40 + "x" + "\n" * 20 + " " * 17,
    "<|endoftext|> a<s>b </s> <pad>", "<mask>", "x  <mask>  y <mask><mask> z", "word words wordword _word word_ word.", "A <tool> in<tool>side TOOL tool",
    "  <a>  <b>  <ab> <abc> <a><b>", "<0x41><0xE2> <unk> [UNK] ##x </w>", "3.14 1,000,000 x2y3 \u00b2\u00b3 \u2167 \u0663\u0664 \u4e09", "$100 + 5% = ~`^|\\ \"q\" (b) [c] {d} a/b\u2014c\u2026 \u00abd\u00bb \u00a1\u00bf",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "the the the  the", "'s 'S \u2019s 'll'LL'\u017f \u212a's",
]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = "|".join([r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def metaspace(scheme="always", split=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def bert_normalizer(**changes):
    return {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True, **changes}


def pre(*steps): return sequence("pretokenizers", *steps)
def norm(*steps): return sequence("normalizers", *steps)
def replace(kind, pattern, content): return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def added(*tokens):
    made = []
    for t in tokens:
        t = {"content": t} if isinstance(t, str) else dict(t)
        special = t.get("special", True)
        made.append({"id": None, "content": t["content"], "single_word": False, "lstrip": False, "rstrip": False,
                     "normalized": not special, "special": special, **t})
    return made


def with_ids(tokens, model):
    """Numbers tokens like the library: tokens that the model lacks come after its vocabulary."""
    ids = model["vocab"] if isinstance(model["vocab"], dict) else {t: i for i, (t, _) in enumerate(model["vocab"])}
    next_id = len(ids)
    for t in tokens:
        t["id"] = ids.get(t["content"], next_id)
        next_id += t["id"] == next_id


def trained(pre_tokenizer, model, trainer, normalizer=None, corpus=CORPUS):
    tokenizer = Tokenizer(model)
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    lines = [normalizer(line) if normalizer else line for line in corpus.splitlines(keepends=True)]
    tokenizer.train_from_iterator(lines, trainer)
    return json.loads(tokenizer.to_str())["model"]


BYTES = [f"<0x{b:02X}>" for b in range(256)]
ALPHABET = pre_tokenizers.ByteLevel.alphabet()


def make_models():
    made = {}
    bpe = dict(show_progress=False)
    made["bytes"] = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), models.BPE(),
                            trainers.BpeTrainer(vocab_size=520, initial_alphabet=sorted(ALPHABET), special_tokens=["<|endoftext|>"], **bpe))
    # Merges cross words, so that tokens show how a text was split.
    made["crossing"] = trained(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), models.BPE(),
                               trainers.BpeTrainer(vocab_size=470, initial_alphabet=sorted(ALPHABET), max_token_length=12, **bpe))
    made["fallback"] = trained(pre_tokenizers.Metaspace(prepend_scheme="always"), models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"),
                               trainers.BpeTrainer(vocab_size=560, special_tokens=["<unk>", "<s>", "</s>"] + BYTES, limit_alphabet=100, **bpe))
    made["suffix"] = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), models.BPE(end_of_word_suffix="</w>", unk_token="<|endoftext|>"),
                             trainers.BpeTrainer(vocab_size=700, initial_alphabet=sorted(ALPHABET), end_of_word_suffix="</w>", special_tokens=["<|endoftext|>"], **bpe),
                             corpus=CORPUS[:1500])
    made["prefix"] = trained(pre_tokenizers.Whitespace(), models.BPE(continuing_subword_prefix="##", unk_token="[UNK]"),
                             trainers.BpeTrainer(vocab_size=400, continuing_subword_prefix="##", special_tokens=["[UNK]"], limit_alphabet=80, **bpe),
                             normalizer=str.lower)
    made["wordpiece"] = trained(pre_tokenizers.BertPreTokenizer(), models.WordPiece(unk_token="[UNK]"),
                                trainers.WordPieceTrainer(vocab_size=420, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], limit_alphabet=90, **bpe),
                                normalizer=str.lower)
    made["unigram"] = trained(pre_tokenizers.Metaspace(), models.Unigram(),
                              trainers.UnigramTrainer(vocab_size=420, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    made["unigram_fallback"] = trained(pre_tokenizers.Metaspace(), models.Unigram(),
                                       trainers.UnigramTrainer(vocab_size=600, special_tokens=["<unk>", "</s>"] + BYTES, unk_token="<unk>", show_progress=False))
    made["unigram_fallback"]["byte_fallback"] = True
    made["unigram_fallback"]["vocab"] = [[t, -20.0 if t in BYTES else s] for t, s in made["unigram_fallback"]["vocab"]]
    # Newer files have merges as pairs; this model keeps the form of older files.
    made["suffix"]["merges"] = [" ".join(m) for m in made["suffix"]["merges"]]
    return made


def charsmap():
    """A small SentencePiece normalisation.

    It maps wide letters, ligatures, half-width kana and composed letters, and removes a control character.
    """
    with tempfile.TemporaryDirectory() as folder:
        rules = {"\uff21": "A", "\uff22": "B", "\uff11": "1", "\ufb01": "fi", "\u2167": "VIII", "\uff76": "\u30ab", "\uff76\uff9e": "\u30ac", "e\u0301": "\u00e9",
                 "o\u0308": "\u00f6", "\u00a0": " ", "\u3000": " ", "\u0001": "", "\u200b": " ", "\u00bd": "1\u20442", "\u2026": "...", "\u1112\u1161\u11ab": "\ud55c"}
        with open(f"{folder}/rules.tsv", "w") as f:
            for a, b in rules.items():
                print(" ".join(f"{ord(c):X}" for c in a), " ".join(f"{ord(c):X}" for c in b), sep="\t", file=f)
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS.splitlines()), model_writer=model, vocab_size=350,
                                                 normalization_rule_tsv=f"{folder}/rules.tsv", minloglevel=2, hard_vocab_limit=False)
        from sentencepiece import sentencepiece_model_pb2 as pb
        proto = pb.ModelProto()
        proto.ParseFromString(model.getvalue())
        return base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()


def make_cases():
    level = byte_level()
    end = "<|endoftext|>"
    plain_level = byte_level(regex=False)
    spm_decoder = sequence("decoders", replace("String", "▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                           {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    spm_added = added("<unk>", "<s>", "</s>")
    cases = []

    def case(name, model, pre_tokenizer=None, normalizer=None, decoder=None, tokens=(), texts=None, **changes):
        cases.append({"name": name, "model": model, "changes": changes, "texts": len(TEXTS) if texts is None else texts,
                      "parts": {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(tokens), "normalizer": normalizer,
                                "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": decoder}})

    # Families.
    case("gpt2", "bytes", level, decoder=level, tokens=added(end))
    case("roberta", "bytes", byte_level(prefix=True), decoder=level,
         tokens=added(end, {"content": "<mask>", "lstrip": True}, {"content": "<s>", "normalized": True}, "<pad>"))
    case("llama3", "bytes", pre(split(LLAMA3), plain_level), decoder=level, tokens=added(end), ignore_merges=True)
    case("qwen2", "bytes", pre(split(QWEN2), plain_level), {"type": "NFC"}, level,
         added(end, "<|im_start|>", "<|im_end|>", {"content": "<tool>", "special": False, "normalized": False}))
    case("o200k", "bytes", pre(split(O200K), plain_level), decoder=level, tokens=added(end))
    case("deepseek", "bytes", pre(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), plain_level), decoder=level, tokens=added(end))
    case("starcoder", "bytes", pre({"type": "Digits", "individual_digits": True}, level), decoder=level, tokens=added(end))
    case("bloom", "bytes", pre(split(BLOOM), plain_level), decoder=level, tokens=added(end))
    case("falcon", "bytes", pre({"type": "Punctuation", "behavior": "Contiguous"}, level, {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]")),
         decoder=level, tokens=added(end))
    case("clip", "suffix", pre(split(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "Removed", True), byte_level(regex=True)),
         norm({"type": "NFC"}, replace("Regex", r"\s+", " "), {"type": "Lowercase"}), level, added(end))
    case("llama2", "fallback", None, norm({"type": "Prepend", "prepend": "▁"}, replace("String", " ", "▁")), spm_decoder, spm_added)
    case("llama2_first", "fallback", metaspace("first", False), None, spm_decoder, spm_added)
    case("gemma", "fallback", split(" ", "MergedWithPrevious", kind="String"), replace("String", " ", "▁"),
         sequence("decoders", replace("String", "▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}),
         added("<unk>", "</s>", *({"content": c, "special": False, "normalized": False} for c in ["\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "  "])))
    precompiled = {"type": "Precompiled", "precompiled_charsmap": charsmap()}
    case("t5", "unigram", metaspace(), norm(precompiled, {"type": "Strip", "strip_left": False, "strip_right": True}, replace("Regex", " {2,}", "▁")),
         metaspace(), added("<pad>", "</s>", "<unk>", {"content": "<mask>", "lstrip": True}))
    case("xlmr", "unigram", pre({"type": "WhitespaceSplit"}, metaspace()), norm(precompiled, replace("Regex", " {2,}", " ")), metaspace(), added("<pad>", "</s>", "<unk>"))
    case("unigram_whole", "unigram_fallback", metaspace("first", False), None, metaspace("first", False), added("<unk>", "</s>"))
    case("bert_like", "prefix", pre({"type": "Whitespace"}, {"type": "Digits", "individual_digits": True}, {"type": "Punctuation"}),
         norm({"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True}), None, added("[UNK]"))
    case("bert_like_fused", "prefix", {"type": "WhitespaceSplit"}, norm({"type": "NFKC"}, {"type": "Lowercase"}), None, added("[UNK]"), fuse_unk=True)
    bert_added = added("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    bert_decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    case("bert", "wordpiece", {"type": "BertPreTokenizer"}, bert_normalizer(), bert_decoder, bert_added)
    case("bert_cased", "wordpiece", {"type": "BertPreTokenizer"}, bert_normalizer(lowercase=False), {**bert_decoder, "cleanup": False}, bert_added)
    case("bert_accents", "wordpiece", {"type": "BertPreTokenizer"},
         bert_normalizer(lowercase=False, strip_accents=True, clean_text=False, handle_chinese_chars=False), bert_decoder, bert_added,
         max_input_chars_per_word=9)
    # Added tokens.
    case("added", "bytes", level, {"type": "Lowercase"}, level,
         added(end, {"content": "word", "single_word": True, "special": False}, {"content": "TOOL", "special": False, "normalized": True},
               {"content": "<tool>", "special": False, "normalized": False, "rstrip": True}, {"content": "<a>", "lstrip": True}, {"content": "<b>", "lstrip": True, "rstrip": True},
               "<ab>", "<abc>", {"content": "<mask>", "rstrip": True}, {"content": "e\u0301", "special": False}, "the", "the  the"))
    # Splits of texts.
    few = 14
    for i, behavior in enumerate(["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]):
        for invert in False, True:
            case(f"split_{behavior}{'_inverted' * invert}", "crossing", pre(split(" " if invert else r"[\s.,:;]", behavior, invert, "String" if invert else "Regex"), plain_level),
                 decoder=level, texts=few)
        case(f"punctuation_{behavior}", "crossing", pre({"type": "Punctuation", "behavior": behavior}, plain_level), decoder=level, texts=few)
    case("nfd", "crossing", plain_level, norm({"type": "NFD"}), level, texts=few)
    case("metaspace_never", "fallback", metaspace("never", True), None, metaspace("never", True), spm_added)
    case("metaspace_of_old", "fallback", {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}, None,
         {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}, spm_added, texts=few)
    case("strip_first", "unigram_fallback", metaspace("first"), norm({"type": "Strip", "strip_left": True, "strip_right": False}), metaspace("first"),
         added("<unk>", "</s>"), texts=few)
    case("level_normalizer", "crossing", None, norm({"type": "NFC"}, {"type": "ByteLevel"}), level, texts=few)
    # Patterns that mean different things in Oniguruma and in PCRE2.
    for i, pattern in enumerate([r"\w+", r"\W", r"\h+", r"\d{2}+", r"(?i)the|w(?m:.)", r"\b\w", r"[[:punct:]]+", r"[[:alpha:][:digit:]]+", r"[a[m-z]-]+", r"^.|.$", r"\p{Han}+|\p{^L}", r"(?<=a)\S*+", r"x?", r"\p{Greek}+|\v|é|\u00e4", r"[\p{L}\p{M}&&[^\p{Han}\p{Greek}]]+", r"[^a-m&&[a-z\s]]+",
                                 r"[\w&&[^aeiou]&&[a-z[0-9]]]{2}+|[\]\[&&\]]"]):
        case(f"regex_{i}", "crossing", pre(split(pattern), plain_level), decoder=level)
    return cases


def make_all():
    """Returns (models, cases), each case with its whole "file"."""
    made, cases = make_models(), make_cases()
    for case in cases:
        with_ids(case["parts"]["added_tokens"], made[case["model"]])
        case["file"] = {**case["parts"], "model": {**made[case["model"]], **case["changes"]}}
        tokenizer = Tokenizer.from_str(json.dumps(case["file"]))
        for t in case["parts"]["added_tokens"]:
            assert tokenizer.token_to_id(t["content"]) == t["id"], (case["name"], t, tokenizer.token_to_id(t["content"]))
    return made, cases


def main():
    made, cases = make_all()
    for case in cases:
        tokenizer = Tokenizer.from_str(json.dumps(case.pop("file")))
        texts = TEXTS[:case["texts"]]
        case["ids"] = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
        decoded = [tokenizer.decode(ids) if ids else "" for ids in case["ids"]]
        case["decoded"] = [None if d == t else d for d, t in zip(decoded, texts)]
    compact = dict(ensure_ascii=False, separators=(",", ":"))
    print('{"texts":', json.dumps(TEXTS, **compact), ',\n"models":{', sep="")
    print(",\n".join(f'"{name}":{json.dumps(model, **compact)}' for name, model in made.items()), '},\n"cases":[', sep="")
    print(",\n".join(json.dumps(case, **compact) for case in cases), "]}", sep="")


def random_texts(count, seed):
    draw = random.Random(seed)
    ranges = [(0x20, 0x7F), (0x20, 0x7F), (0x61, 0x7B), (0xA0, 0x180), (0x300, 0x370), (0x370, 0x400), (0x400, 0x460), (0x5D0, 0x5EB), (0x620, 0x660), (0x900, 0x970),
              (0xE01, 0xE3B), (0x1100, 0x1200), (0x2000, 0x2070), (0x2150, 0x2189), (0x3040, 0x3100), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xFF01, 0xFFBE),
              (0x1F600, 0x1F640), (0x1F1E6, 0x1F200), (0, 0x20), (0x1D400, 0x1D455)]
    import unicodedata
    characters = [[chr(c) for c in range(a, b) if unicodedata.category(chr(c)) not in ("Cn", "Cs")] for a, b in ranges]
    words = CORPUS.split() + ["<|endoftext|>", "<mask>", "<s>", "</s>", "<tool>", "word", "the", "TOOL", "<a>", "<b>", "<ab>", "<abc>", "<0x41>", "▁", "\u200d", "\ufe0f", "\ufffd", "'s", "'LL"]
    blanks = [" ", " ", " ", "  ", "   ", "\n", "\r\n", "\t", "\u00a0", "\u3000", ""]
    for _ in range(count):
        text = ""
        for _ in range(draw.randint(1, 12)):
            kind = draw.random()
            if kind < 0.4:
                text += draw.choice(words)
            elif kind < 0.8:
                some = draw.choice(characters)
                text += "".join(draw.choice(some) for _ in range(draw.randint(1, 5)))
            else:
                text += "".join(draw.choice(draw.choice(characters)) for _ in range(draw.randint(1, 6)))
            text += draw.choice(blanks)
        yield text


def prepare(program, folder, kind, texts):
    """Returns the tokens of all texts in order, and the seconds that `prepare` took."""
    with open(f"{folder}/texts.jsonl", "w") as f:
        f.writelines(json.dumps({"text": t}) + "\n" for t in texts)
    start = time.time()
    subprocess.run([program, "prepare", "--domain", f"d={folder}/texts.jsonl", "--tokenizer", kind, "--valid-fraction", "0", "--output",
                    f"{folder}/data", "--overwrite", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    seconds = time.time() - start
    vocab = next(int(line.split("=")[1]) for line in open(f"{folder}/data/dataset.ini") if line.startswith("vocab"))
    return numpy.fromfile(f"{folder}/data/d.train.bin", dtype=numpy.uint16 if vocab < 65500 else numpy.int32).tolist(), seconds


def files_of(paths):
    """Yields (name, content) of the files, or of the cases if there are no files."""
    for path in paths:
        yield path, json.load(open(path))
    for case in [] if paths else make_all()[1]:
        yield case["name"], case["file"]


END = "\u2402end\u2402"


def compare(program, name, file, texts):
    """Returns the number of texts that differ, the tokens, and the seconds of the library and of the program."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Tokenizer.from_str(json.dumps(file))
        ids = tokenizer.get_vocab()
        file["added_tokens"] += added(END)
        file["added_tokens"][-1]["id"] = end = max(ids.values()) + 1
        json.dump(file, open(f"{folder}/tokenizer.json", "w"))
        json.dump({"eos_token": END}, open(f"{folder}/tokenizer_config.json", "w"))
        start = time.time()
        want = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
        hf_seconds = time.time() - start
        got, seconds = prepare(program, folder, f"hf:{folder}/tokenizer.json", texts)
        seconds -= prepare(program, folder, "bytes", texts)[1]
    encoded, here = [], []
    for i in got:
        if i == end:
            encoded.append(here)
            here = []
        else:
            here.append(i)
    assert len(encoded) == len(texts), (name, len(encoded), len(texts))
    wrong = [(t, w, g) for t, w, g in zip(texts, want, encoded) if w != g]
    for t, w, g in wrong[:3]:
        at = next((i for i, (a, b) in enumerate(zip(w, g)) if a != b), 0)
        print(f"  {name}: {t[:200]!r}\n    from {at}: want {[tokenizer.id_to_token(i) for i in w[at:at + 8]]}\n    got {[tokenizer.id_to_token(i) for i in g[at:at + 8]]}")
    return len(wrong), sum(map(len, want)), hf_seconds, seconds


def fuzz(program, count, *paths):
    all_wrong = 0
    for number, (name, file) in enumerate(files_of(paths)):
        wrong = compare(program, name, file, [t for t in random_texts(count, number + count) if t])[0]
        print(f"{name}: {wrong} of {count} differ", flush=True)
        all_wrong += wrong
    print(f"{all_wrong} differ in all")


def speed(program, text_file, *paths):
    text = open(text_file, encoding="utf-8", errors="replace").read()
    texts = [text[i:i + 60000] for i in range(0, len(text), 60000)]
    for name, file in files_of(paths):
        wrong, tokens, hf_seconds, seconds = compare(program, name, file, texts)
        print(f"{name}: {wrong} of {len(texts)} differ; {tokens} tokens: HF tokenizers {tokens / hf_seconds / 1e6:.2f} M/s, this program {tokens / seconds / 1e6:.2f} M/s, "
              f"ratio {hf_seconds / seconds:.2f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fuzz"]:
        fuzz(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    elif sys.argv[1:2] == ["--speed"]:
        speed(*sys.argv[2:])
    else:
        main()

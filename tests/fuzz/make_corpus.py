#!/usr/bin/env python3
"""Writes the files of tests/fuzz/corpus whose names begin with valid- or forged-.

  tests/fuzz/make_corpus.py      needs h5py

Files of HDF5 differ in unused bytes each time; the others are equal. Findings of the fuzzer
(found-*) stay as they are.
"""
import base64
import gzip
import json
import pathlib
import struct
import tempfile
import zlib

import h5py
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
CORPUS = HERE / "corpus"
FIRST = TESTS / "fixtures" / "first-run"
GOLDEN = TESTS / "golden"


def write(target, name, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def two_files(first, second):
    return struct.pack("<I", len(first)) + first + second


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ---- checkpoints ----

def shard(name="/params/w", values=6):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "shard.h5"
        with h5py.File(path, "w", libver=("v110", "v110"), track_order=True) as file:
            file.create_dataset(name, data=np.arange(values, dtype="<f4"), track_times=False)
        return path.read_bytes()


def index(change=lambda file: None, text=b"x", few_attributes=False):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "index.h5"
        with h5py.File(path, "w", libver=("v110", "v110"), track_order=True) as file:
            state = file.create_group("state", track_order=True)
            numbers = {"step": 20, "tokens": 640, "samples": 40, "vocab": 257, "format": 1, "finite": 1}
            for key, value in numbers.items():
                state.attrs.create(key, np.int64(value))
            state.attrs.create("seed", np.uint64(1))
            for key in ("config", "dataset", "layout"):
                state.attrs.create(key, np.bytes_(text))
            if not few_attributes:
                state.attrs.create("validation", np.bytes_(compact(
                    {"lowest": 2.5, "lowest_step": 10, "since_lowest": 1, "best": [{"step": 10, "loss": 2.5}]})))
                state.attrs.create("gradient_norms", np.bytes_(compact(
                    {"norms": [1.5, 0.5], "skipped": 1, "in_a_row": 0})))
            experts = file.create_group("experts", track_order=True)
            experts.attrs.create("layers", np.int64(1))
            experts.attrs.create("experts", np.int64(3))
            for name, data in (("routed", np.ones((2, 1, 3), "<i8")), ("dropped", np.zeros((2, 1, 3), "<i8")),
                               ("probability", np.full((2, 1, 3), 0.25, "<f4")),
                               ("steps", np.array([10, 20], "<i8")), ("layers", np.array([0], "<i8"))):
                experts.create_dataset(name, data=data, track_times=False)
            for name in ("router", "norm", "params"):
                file.create_group(name, track_order=True)
            file.create_dataset("router/bias", data=np.zeros((1, 3), "<f4"), track_times=False)
            file.create_dataset("norm/averages", data=np.ones((1, 2, 2), "<f4"), track_times=False)
            virtual(file, "shard-00000.h5")
            change(file)
        return path.read_bytes()


def virtual(file, source_file, shape=(2, 3), elements=6):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    target = h5py.h5s.create_simple(shape)
    target.select_hyperslab((0,) * len(shape), shape)
    source = h5py.h5s.create_simple((elements,))
    count = int(np.prod(shape))
    source.select_hyperslab((0,), (count,))
    properties.set_virtual(target, source_file.encode(), b"/params/w", source)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    if "params/w" in file:
        del file["params/w"]
    h5py.h5d.create(file.id, b"params/w", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple(shape), dcpl=properties,
                    lcpl=links)


def virtual_shard():
    """A linked index, which takes the place of a shard, too."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "shard.h5"
        with h5py.File(path, "w", libver=("v110", "v110"), track_order=True) as file:
            file.create_group("params", track_order=True)
            virtual(file, "shard-00000.h5")
        return path.read_bytes()


def link_to(linked_file):
    def change(file):
        del file["params/w"]
        file["params/w"] = h5py.ExternalLink(linked_file, "/params/w")
    return change


def attribute(group, key, value):
    def change(file):
        file[group].attrs.create(key, value)
    return change


def claim(name, shape, kind):
    """Replaces a dataset by one of this shape without values."""
    def change(file):
        del file[name]
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
        properties.set_layout(h5py.h5d.CONTIGUOUS)
        h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple(shape), dcpl=properties)
    return change


def checkpoints():
    plain, small = shard(), index(few_attributes=True)
    forged = {
        "links": lambda file: file.__setitem__("params/v", h5py.SoftLink("/params/w")),
        "external": lambda file: file.__setitem__("params/v", h5py.ExternalLink("/etc/passwd", "/x")),
        "cycle": lambda file: file.__setitem__("params/loop", file["params"]),
        "many-layers": attribute("experts", "layers", np.int64(1 << 62)),
        "negative": attribute("experts", "experts", np.int64(-1)),
        "windows": claim("experts/steps", (1 << 40,), h5py.h5t.STD_I64LE),
        "averages": claim("norm/averages", (1 << 20, 2, 1 << 20), h5py.h5t.IEEE_F32LE),
        "elsewhere": lambda file: virtual(file, "../shard-00000.h5"),
        "beyond": lambda file: virtual(file, "shard-00000.h5", (4, 3), 12),
        "norms": attribute("state", "gradient_norms", np.bytes_('{"norms":[-1],"skipped":0,"in_a_row":0}')),
    }
    for target in ("checkpoint", "checkpoint_forged"):
        write(target, "valid-all", two_files(index(), plain))
        write(target, "valid-small", two_files(small, plain))
        for name, change in forged.items():
            write(target, f"forged-{name}", two_files(index(change), plain))
        write(target, "forged-short-shard", two_files(small, shard(values=3)))
        linked = index(few_attributes=True, change=link_to("index-00001.h5"))
        write(target, "forged-linked", two_files(linked, virtual_shard()))
        write(target, "forged-link-to-values", two_files(linked, plain))
        # The library reads a heap without an end for ever.
        at = small.index(b"GCOL")
        broken = bytearray(small)
        broken[at + 16:at + 32] = struct.pack("<HHIQ", 1, 1, 0, 2**64 - 16)
        write(target, "forged-heap", two_files(bytes(broken), plain))
    manifest = (FIRST / "run/checkpoints/step-00000020/manifest.json").read_text()
    write("manifest", "valid-first-run", manifest)
    write("manifest", "forged-name", manifest.replace("index.h5", "../x"))
    write("manifest", "forged-twice", manifest.replace("shard-00001", "shard-00000"))
    write("manifest", "forged-version", manifest.replace('"version": 1', '"version": 99999999999999999999'))


def stored(tensors, data, **metadata):
    header = {"__metadata__": metadata} if metadata else {}
    header.update({name: {"dtype": kind, "shape": shape, "data_offsets": offsets}
                   for name, kind, shape, offsets in tensors})
    text = compact(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def safetensors():
    write("safetensors", "valid-three", stored(
        [("a", "F32", [2, 3], [0, 24]), ("b", "BF16", [3], [24, 30]), ("c", "F16", [1], [30, 32])],
        bytes(range(32)), format="pt"))
    write("safetensors", "valid-empty", stored([], b""))
    write("safetensors", "valid-no-elements", stored([("a", "I64", [0, 7], [0, 0])], b""))
    write("safetensors", "forged-length", struct.pack("<Q", 2**63) + b"{}")
    # A header beyond the last page of the file.
    write("safetensors", "forged-length-99", struct.pack("<Q", 99_999_999) + b" " * 4088)
    write("safetensors", "forged-beyond", stored([("a", "F32", [1 << 30], [0, 1 << 32])], b"1234"))
    write("safetensors", "forged-overflow", stored([("a", "F32", [1 << 62, 1 << 62], [0, 0])], b""))
    write("safetensors", "forged-overlap", stored([("a", "F32", [1], [0, 4]), ("b", "F32", [1], [2, 6])], b"123456"))
    write("safetensors", "forged-negative", stored([("a", "F32", [-1], [0, -4])], b""))
    index_of = {"metadata": {"total_size": 34}, "weight_map": {"a": "model.safetensors", "b": "model.safetensors"}}
    write("safetensors_index", "valid-one", compact(index_of))
    write("safetensors_index", "forged-elsewhere", compact({"weight_map": {"a": "../../etc/passwd"}}))
    write("safetensors_index", "forged-type", compact({"weight_map": ["model.safetensors", 1]}))


# ---- data ----

def data():
    def pair(name):
        return [(FIRST / f"data/{name}.{kind}").read_bytes() for kind in ("idx", "bin")]
    idx, tokens = pair("wagons.valid")
    write("indexed_tokens", "valid-wagons", two_files(idx, tokens))
    write("indexed_tokens", "valid-tracks", two_files(*pair("tracks.train")))

    def header(kind, sequences, boundaries):
        return b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, kind, sequences, boundaries)
    # The target asks for the loss mask, as the last byte is 7.
    masked = header(1, 2, 2) + struct.pack("<2i2q2q2B", 1, 2, 0, 1, 0, 2, 1, 0)
    write("indexed_tokens", "valid-masked", two_files(masked, bytes([5, 6, 7])))
    write("indexed_tokens", "forged-modes", two_files(masked[:-1] + b"\x02", bytes([5, 6, 7])))
    for name, sequences, boundaries in (("sequences", 1 << 60, 1), ("boundaries", 0, 1 << 61), ("none", 0, 0),
                                        ("wraps", (2**65 - 8) // 12, 1)):
        write("indexed_tokens", f"forged-{name}", two_files(header(4, sequences, boundaries), b""))
    write("indexed_tokens", "forged-length", two_files(header(5, 1, 2) + struct.pack("<iq2q", -8, 0, 0, 1), b""))
    write("indexed_tokens", "forged-pointer", two_files(header(4, 1, 2) + struct.pack("<iq2q", 1, 1 << 62, 0, 1),
                                                        b"1234"))
    write("dataset_ini", "valid-first-run", (FIRST / "data/dataset.ini").read_bytes())
    write("dataset_ini", "valid-none", "[dataset]\ntokenizer = none\nvocab = 50257 # ids\ndomains = web\n"
          "[web]\nweight = 0.5\nloss_mask = true\npairs = true\ntrain_bin_sha256 = " + "a" * 64 + "\n")
    write("dataset_ini", "forged-numbers", "[dataset]\ntokenizer = none\nvocab = 9223372036854775808\ndomains = a,b\n"
          "[a]\nweight = nan\ntrain_tokens = 4611686018427387905\n")
    write("dataset_ini", "forged-names", "[dataset]\ntokenizer = bytes\ndomains = ../a,dataset,a,a\n")
    lines = ['{"text":"The wagons wait."}', '', '{"text":"größer","id":3}', '{"text":""}', '{"text":"a\\u0000b"}']
    write("json_lines", "valid-five", "\n".join(lines))
    write("json_lines", "forged-type", '{"text":["a"]}\n[1]\n')
    write("json_lines", "forged-utf8", b'{"text":"\xff\xfe"}\n')
    write("json_lines", "forged-deep", "[" * 3000)
    text = b"The wagons wait.\n\nThe tracks are long.\n"

    def zipped(content):
        return gzip.compress(content, 9, mtime=0)
    write("gzip", "valid-text", zipped(text))
    write("gzip", "valid-two", zipped(text) + zipped(b"") + zipped(text))
    write("gzip", "valid-bomb", zipped(b"a" * (6 << 20)))
    write("gzip", "forged-cut", zipped(text)[:-9])
    write("gzip", "forged-dictionary", zlib.compress(text))
    write("gzip", "forged-rest", zipped(text) + b"rest")
    write("gzip_documents", "valid-five", zipped("\n".join(lines).encode()))
    write("gzip_documents", "forged-bomb", zipped(b" " * (5 << 20)))
    write("gzip_documents", "forged-cut", zipped("\n".join(lines).encode())[:30])

    def frame(window, *blocks):
        # Blocks: (kind, content or byte, size); kind 0 is raw, 1 repeats a byte.
        content = struct.pack("<IBB", 0xFD2FB528, 0, window)
        for i, (kind, body, size) in enumerate(blocks):
            last = i + 1 == len(blocks)
            content += struct.pack("<I", last | kind << 1 | size << 3)[:3] + body
        return content
    raw = (0, text, len(text))
    write("zstd", "valid-text", frame(0x38, raw))
    write("zstd", "valid-two", frame(0x38, raw) + struct.pack("<II", 0x184D2A50, 4) + b"skip" + frame(0x38, raw))
    write("zstd", "valid-bomb", frame(0x38, *[(1, b"a", 128 << 10)] * 60))
    write("zstd", "valid-window", frame(17 << 3, raw))
    write("zstd", "forged-window", frame(0xF8, raw))
    write("zstd", "forged-cut", frame(0x38, raw)[:20])
    write("zstd", "forged-block", frame(0x38, (3, b"", 1000)))


def templates_and_tokenizers():
    chats = json.loads((GOLDEN / "chat_templates.json").read_text())
    for name in ("chatml", "gemma", "llama3", "qwen2.5", "deepseek"):
        write("chat_template", f"valid-{name}", chats["families"][name])
    write("chat_template", "forged-loop", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    write("chat_template", "forged-text", "{{ ('x' * 99999) * 99999 }}")
    write("chat_template", "forged-deep", "{{ " + "(" * 3000)
    write("chat_template", "forged-macro", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")
    write("tokenizer_config", "valid-text", compact(
        {"chat_template": chats["families"]["chatml"], "eos_token": {"content": "</s>"}, "bos_token": "<s>"}))
    write("tokenizer_config", "valid-named", compact(
        {"chat_template": [{"name": "default", "template": "{{ messages }}"}], "pad_token": None}))
    write("tokenizer_config", "forged-types", compact({"chat_template": {"a": 1}, "eos_token": {"content": 1}}))
    write("conversation", "valid-messages", compact({"messages": [
        {"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Three."},
        {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]}))
    write("conversation", "valid-prompt", compact({"prompt": "How many? ", "completion": "Three."}))
    write("conversation", "forged-types", compact({"messages": [{"role": ["user"], "content": None}], "tools": 3}))
    write("conversation", "forged-role", compact({"messages": [{"role": "assistant", "content": "\ud7ff"}]}))
    golden = json.loads((GOLDEN / "tokenizer_json.json").read_text())
    small = {
        "valid-bpe": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": False, "fuse_unk": True,
                      "vocab": {"<unk>": 0, "H": 1, "e": 2, "l": 3, "o": 4, "ll": 5, "He": 6, "Hell": 7},
                      "merges": [["l", "l"], ["H", "e"], ["He", "ll"]]},
        "valid-wordpiece": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                            "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "he": 1, "##llo": 2, "world": 3}},
        "valid-unigram": {"type": "Unigram", "unk_id": 0, "byte_fallback": False,
                          "vocab": [["<unk>", 0.0], ["▁He", -1.5], ["llo", -2.0], ["▁world", -3.0]]},
    }
    cases = {case["name"]: case["parts"] for case in golden["cases"]}
    for name, component, family in (("valid-bpe", small["valid-bpe"], "qwen2"), ("valid-deepseek", small["valid-bpe"], "deepseek"),
                                    ("valid-wordpiece", small["valid-wordpiece"], "bert"),
                                    ("valid-unigram", small["valid-unigram"], "t5"),
                                    ("valid-metaspace", small["valid-unigram"], "metaspace_of_old"),
                                    ("valid-added", small["valid-bpe"], "added"),
                                    ("valid-digits", small["valid-bpe"], "bloom")):
        document = dict(cases[family])
        document["model"] = component
        tokens = component["vocab"]
        known = dict(tokens) if isinstance(tokens, dict) else {text: i for i, (text, _) in enumerate(tokens)}
        document["added_tokens"] = [dict(token, id=known.get(token["content"], 8 + i))
                                    for i, token in enumerate(document["added_tokens"])]
        write("tokenizer_json", name, compact(document))
    bare = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "decoder": None}
    write("tokenizer_json", "forged-id", compact(dict(bare, model=dict(small["valid-bpe"], vocab={"a": 2147483647}))))
    write("tokenizer_json", "forged-added", compact(dict(
        bare, added_tokens=[{"id": 2000000000, "content": "x", "special": True}], model=small["valid-bpe"])))
    write("tokenizer_json", "forged-repeat", compact(dict(
        bare, normalizer={"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "l"}, "content": "l" * 50}] * 5}, model=small["valid-bpe"])))
    write("tokenizer_json", "forged-charsmap", compact(dict(
        bare, normalizer={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(
            struct.pack("<I", 2**32 - 4) + b"abcd").decode()}, model=small["valid-unigram"])))
    write("tokenizer_json", "forged-charsmap-text", compact(dict(
        bare, normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap_of_l(b"x\xf0")},
        model=small["valid-unigram"])))
    write("tokenizer_json", "valid-charsmap", compact(dict(
        bare, normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap_of_l(b"LL")},
        model=small["valid-unigram"])))
    # Bytes that are no UTF-8 reach the components after ByteLevel and ByteFallback.
    halves = {"type": "BPE", "unk_token": "\u00c3", "byte_fallback": True, "merges": [],
              "vocab": {"\u00c3": 0, "H": 1, "<0xF0>": 2, "\u0120": 3}}
    for i, first in enumerate(("ByteLevel", "ByteFallback")):
        write("tokenizer_json", f"valid-halves-{i}", compact(dict(bare, model=halves, decoder={
            "type": "Sequence", "decoders": [
                {"type": first}, {"type": "Replace", "pattern": {"Regex": "\\w|."}, "content": "x"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 1}]})))
    seen = set()
    for case in golden["cases"]:
        split = json.dumps(case["parts"]["pre_tokenizer"])
        for pattern in json.loads("[" + ",".join(find_patterns(json.loads(split))) + "]"):
            seen.add(pattern)
    for i, pattern in enumerate(sorted(seen)):
        write("regex", f"valid-{i:02}", pattern)
    write("regex", "forged-time", "(a*)*(b|a|aa)+$(?<!x+x+y)")
    write("regex", "forged-deep", "(" * 1000)
    write("regex", "forged-count", "(?:a{65535}){65535}")
    write("sentencepiece", "valid-six", sentencepiece_model())
    write("sentencepiece", "forged-empty", "")
    write("sentencepiece", "forged-length", b"\x0a\xff\xff\xff\xff\x07a")


def charsmap_of_l(replacement):
    units = [0] * 866
    units[0] = 256 << 10
    units[256 ^ ord("l")] = 512 << 10 | 1 << 8 | ord("l")
    return base64.b64encode(struct.pack("<867I", 4 * 866, *units) + replacement + b"\0").decode()


def find_patterns(value):
    if isinstance(value, dict):
        if isinstance(value.get("pattern"), dict) and "Regex" in value["pattern"]:
            yield json.dumps(value["pattern"]["Regex"])
        for inner in value.values():
            yield from find_patterns(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from find_patterns(inner)


def sentencepiece_model():
    def number(field, value):
        return bytes([field << 3]) + varint(value) if field < 16 else varint(field << 3) + varint(value)

    def varint(value):
        out = b""
        while value > 127:
            out += bytes([value & 127 | 128])
            value >>= 7
        return out + bytes([value])

    def field(number_of_field, content):
        return varint(number_of_field << 3 | 2) + varint(len(content)) + content
    model = b""
    for text, score, kind in (("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("▁He", -1.5, 1), ("llo", -2, 1),
                              ("▁world", -3, 1)):
        model += field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + number(3, kind))
    model += field(2, number(3, 1) + number(4, 6) + number(40, 0) + number(41, 1) + number(42, 2))
    return model + field(3, field(1, b"identity") + number(3, 1) + number(4, 0) + number(5, 1))


# ---- settings ----

def settings():
    write("json", "valid-all", '{"a":[1,-2,3.5,1e300,18446744073709551615,true,null,"\\u00e9\\ud83d\\ude00\\n"],"a":{}}')
    write("json", "valid-python", '{"a":[1.0,-0.0,5e-324],"b":"é"}')
    write("json", "forged-deep", '{"a":' * 1100)
    write("json", "forged-number", "[1e999,-1e999,99999999999999999999999999]")
    write("json", "forged-names", "[NaN,Infinity,-Infinity]")
    write("ini", "valid-all", '\ufeff# c\r\n[a]\r\nb = 1 ; c\n"x" = y\nb = "q\\"\\\\\\x41"\n[c.d]\nz=\n')
    write("ini", "forged-lines", "[a\nb\n=c\n[]\n")
    for name in ("quickstart", "deepseek-tiny", "switch-t5-tiny", "bert-tiny"):
        write("config", f"valid-{name}", (TESTS.parent / f"configs/{name}.ini").read_bytes())
    write("config", "valid-first-run", (FIRST / "run/config.ini").read_bytes())
    write("config", "valid-pattern", "[model]\nlayers = 6\nd_model = 64\nheads = 4\npattern = local*5, global\n"
          "[attention.local]\nwindow = 16\n")
    write("config", "forged-sizes", "[model]\nlayers = 999999999999\nd_model = 9223372036854775807\nheads = 0\n")
    write("config", "forged-pattern", "[model]\npattern = a*999999999999, b\n")
    kinds = [f"k{i}" for i in range(101)]
    write("config", "forged-kinds", "[model]\npattern = " + ",".join(kinds) + "\n"
          + "".join(f"[attention.{kind}]\nwindwo = {i + 1}\n" for i, kind in enumerate(kinds)))
    order = {"format": "switchyard-placement", "layers": [{"layer": 0, "order": [5, 4, 3, 2, 1, 0]},
                                                            {"layer": 1, "order": [0, 1, 2, 3, 4, 5]}]}
    write("expert_map", "valid-two", compact(order))
    write("expert_map", "forged-number", compact({"layers": [{"layer": 0, "order": [0, 1, 2, 3, 4, 1 << 60]}]}))
    write("expert_map", "forged-negative", compact({"layers": [{"layer": 0, "order": [-(1 << 60)]}]}))
    write("expert_map", "forged-twice", compact({"layers": [{"layer": 0, "order": [0, 0, 2, 3, 4, 5]}]}))
    for name in ("h100", "lumi"):
        write("machine", f"valid-{name}", (TESTS.parent / f"configs/machines/{name}.ini").read_bytes())
    write("machine", "forged-curve", "[machine]\nmemory = 1e9\n[compute]\nproducts = 0:1, -1:nan, 1e400:0.5\n")
    for name in ("balancing", "capacity"):
        write("sweep", f"valid-{name}", (TESTS.parent / f"configs/ablations/{name}.ini").read_bytes())
    write("sweep", "valid-none", "[model]\nlayers = 2\n")
    many = "".join(f"vary = model.a{i}=0,1,2,3,4,5,6,7,8,9\n" for i in range(12))
    write("sweep", "forged-many", "[sweep]\nbase = a.ini\n" + many)
    for model in json.loads((GOLDEN / "families.json").read_text()):
        if model["name"] in ("gpt2", "llama", "mixtral", "qwen3_moe", "deepseek_v3", "gemma3", "t5", "bert"):
            write("model_config", f"valid-{model['name']}", compact(model["config"]))
    write("model_config", "forged-layers", compact(
        {"model_type": "gpt2", "vocab_size": 300, "n_embd": 24, "n_head": 4, "n_layer": 2000000000,
         "n_positions": 40}))


# ---- records ----

def records():
    lines = (FIRST / "run/metrics.jsonl").read_text().splitlines()
    write("metrics", "valid-first-run", "\n".join(lines[:6]) + "\n")
    write("metrics", "valid-validation", '{"step":5,"loss":2.5,"tokens_per_second":9,"validation":{"loss":2.25}}\n{"st')
    write("metrics", "forged-steps", '{"step":9223372036854775807}\n{"step":-9223372036854775808}\n')
    write("metrics", "forged-experts", '{"step":1,"experts":{"routed":[[9223372036854775807,9223372036854775807],[]]}}\n')
    write("run_config", "valid-first-run", (FIRST / "run/config.ini").read_bytes())
    write("run_config", "forged-steps", "[train]\nsteps = 99999999999999999999\npatience = -1\ntarget_loss = nan\n")

    def event(name, begin, took):
        return {"ph": "X", "name": name, "ts": begin, "dur": took, "pid": 0, "tid": 0}
    trace = {"displayTimeUnit": "ms", "traceEvents": [
        event("step", 0, 100), event("moe", 0, 50), event("all_to_all", 10, 20), event("optimizer", 60, 30),
        event("reduce_scatter", 60, 20), {"ph": "M", "name": "process_name"}]}
    write("trace", "valid-step", compact(trace))
    write("trace", "forged-times", compact({"traceEvents": [event("step", 1e308, 1e308), event("step", -1e308, -1)]}))
    write("trace", "forged-types", compact({"traceEvents": {"ph": "X"}}))
    point = {"ranks": 1, "tp": 1, "ep": 1, "etp": 1, "node": 1, "global_batch": 8, "micro_batch": 8,
             "balanced": False, "tokens_per_second": 390.5}
    result = {"format": "switchyard-scale", "version": 1, "points": [point],
              "environment": {"host": "host", "instruction_set": "avx2", "threads": "1", "build": "x",
                              "launcher": "launch/mpirun.sh"},
              "configuration": {"model": {"layers": 2}, "train": {"global_batch": 8}}}
    write("scale_result", "valid-one", compact(result))
    write("scale_result", "forged-section", compact(dict(result, configuration={"model": 1})))
    write("scale_result", "forged-point", compact(dict(result, points=[dict(point, ranks="1")])))
    write("scale_result", "forged-lines", compact(dict(result, configuration={"model]\n[run": {"a": "b\n\u0001"}})))
    write("evaluation", "valid-first-run", (FIRST / "evaluation.json").read_bytes())
    evaluation = json.loads((FIRST / "evaluation.json").read_text())
    write("evaluation", "forged-experts", compact(dict(evaluation, layers=[1, 3])))
    evaluation["domains"][0]["experts"] = [[]]
    write("evaluation", "forged-empty", compact(evaluation))
    write("provenance", "valid-record", compact(
        {"program_version": "0.2.0", "commit": "0" * 40, "dirty": False, "processors": {"EPYC": 2}, "gpus": {},
         "environment": {"OMP_NUM_THREADS": "2"}, "date": "2026-11-28", "command": "switchyard train",
         "config_sha256": "a" * 64}))
    write("provenance", "forged-types", compact({"processors": [1, {"a": []}], "commit": 3, "config_sha256": {}}))
    write("validation_record", "valid-one", compact(
        {"lowest": 2.5, "lowest_step": 10, "since_lowest": 1, "best": [{"step": 10, "loss": 2.5}]}))
    write("validation_record", "valid-none", compact(
        {"lowest": None, "lowest_step": -1, "since_lowest": 3, "best": []}))
    write("validation_record", "forged-order", compact(
        {"lowest": 1, "lowest_step": 1 << 60, "since_lowest": -1, "best": [{"step": 1, "loss": 2}, {"step": 2, "loss": 1}]}))
    write("norm_history", "valid-two", compact({"norms": [1.5, 0.5], "skipped": 1, "in_a_row": 1}))
    write("norm_history", "forged-many", compact({"norms": [1.0] * 129, "skipped": 1, "in_a_row": 2}))
    write("tokenizer_record", "valid-two", "huggingface " + "a" * 64 + ", sentencepiece " + "b" * 64)
    write("tokenizer_record", "forged-commas", ",, ,a,")


checkpoints()
safetensors()
data()
templates_and_tokenizers()
settings()
records()

#!/usr/bin/env bash
# Tests conversations: prepare --chat with a loss mask, training on it, and generate --chat.
source "$2/tests/cli/lib/lib.sh"

mkdir chatml
cat >chatml/chat_template.jinja <<'JINJA'
{% for message in messages %}{{ '<' ~ message.role[0] ~ '>' ~ message.content ~ '</' ~ message.role[0] ~ '>' }}{% endfor %}
{% if add_generation_prompt %}{{ '<a>' }}{% endif %}
JINJA
for i in $(seq 1 60); do
  printf '{"messages": [{"role": "user", "content": "count %d"}, {"role": "assistant", "content": "wagon %d"}, {"role": "user", "content": "more"}]}\n' \
    "$i" $((i % 3)) >>talk.jsonl
done

# The mask: in each document, the answer, its end and end_of_text count.
expect_ok "$switchyard" prepare --chat talk=talk.jsonl --template hf:chatml --valid-fraction 0.1 --output data
grep -q '^format_version = 2$' data/dataset.ini || die "a loss mask has another format version"
grep -q '^loss_mask = true$' data/dataset.ini || die "dataset.ini has no loss mask"
cmp data/chat_template.jinja chatml/chat_template.jinja || die "the template is not in the data set"
python3 - data/talk.train <<'PYTHON' || die "the loss mask is wrong"
import struct, sys
idx, tokens = open(sys.argv[1] + ".idx", "rb").read(), open(sys.argv[1] + ".bin", "rb").read()
sequences, boundaries = struct.unpack("<QQ", idx[18:34])
lengths = struct.unpack(f"<{sequences}i", idx[34:34 + 4 * sequences])
modes = idx[34 + 12 * sequences + 8 * boundaries:]
assert len(modes) == sequences == 2 * (boundaries - 1), (sequences, boundaries)
at = 0
for i, (length, mode) in enumerate(zip(lengths, modes)):
    ids = struct.unpack(f"<{length}H", tokens[2 * at:2 * (at + length)])
    at += length
    assert mode == 1 - i % 2
    text = bytes(x for x in ids if x < 256)
    if mode == 1:
        assert text.startswith(b"<u>count ") and text.endswith(b"</u><a>") and 256 not in ids, text
    else:
        assert text[:6] == b"wagon " and text.endswith(b"</a>") and ids[-1] == 256, text
assert 2 * at == len(tokens)
PYTHON
expect_ok "$switchyard" inspect data --verify

# Training counts the answers alone, on each layout.
cat >small.ini <<'INI'
[model]
layers = 2
d_model = 32
heads = 4
d_ff = 64
seq_len = 64
[moe]
experts = 4
top_k = 2
[train]
steps = 120
warmup = 5
lr = 0.01
global_batch = 4
micro_batch = 1
seed = 3
[data]
path = data
[run]
backend = cpu
INI
expect_ok "$switchyard" train small.ini --run.dir=one
expect_ok ranks 2 train small.ini --run.dir=two --parallel.ep=2 --train.steps=20
python3 - <<'PYTHON' || die "the losses of two ranks are not those of one"
import json
one, two = ([json.loads(line)["loss"] for line in open(f"{run}/metrics.jsonl")] for run in ("one", "two"))
assert all(abs(a - b) < 1e-4 for a, b in zip(one[:3], two)), (one[:3], two[:3])
assert one[-1] < 0.5, one[-1]
PYTHON
expect_ok "$switchyard" evaluate one
expect_file one/tokenizer/chat_template.jinja

# The model learnt the answers, their end included.
talk() {  # RANKS MESSAGES OPTIONS...
  printf "$2" | ranks "$1" generate one --chat --temperature 0 --tokens 20 "${@:3}"
}
for n in 1 2; do
  expect_ok talk $n 'count 5\n'
  [[ $out == "wagon "[0-2] ]] || die "the model on $n ranks answers '$out'"
done
expect_ok talk 1 'count 5\n\ncount 6' --json --system s
[[ $(grep -c '"role"' <<<"$out") == 5 ]] || die "not all messages: $out"
long=$(printf 'x%.0s' $(seq 61))
expect_error "the conversation has 71 tokens, and model.seq_len is 64" talk 1 "$long\n"

# Errors.
expect_error "--system and --template belong to --chat" "$switchyard" generate one --prompt a --system s
expect_error "--template is for conversations" \
  "$switchyard" prepare --domain a=chatml --template hf:chatml --output bad
expect_error "none has no chat template" "$switchyard" prepare --chat talk=talk.jsonl --template hf:none --output bad
mkdir refuses
printf 'a\n{{ raise_exception("no system") }}' >refuses/chat_template.jinja
wrong() {  # LINE REASON OPTIONS...
  echo "$1" >bad.jsonl
  expect_error "$2" "$switchyard" prepare --chat talk=talk.jsonl,bad.jsonl --output bad "${@:3}"
  expect_no_file bad/dataset.ini
}
wrong '{"prompt": "a", "completion": ""}' "bad.jsonl: line 1: 'completion' is empty" --template hf:chatml
wrong '{"messages": [{"role": "user", "content": "a"}]}' "no message is one of the assistant" --template hf:chatml
wrong '{"text": "a"}' "bad.jsonl: line 1: there is neither 'messages' nor" --template hf:chatml
wrong '{"messages": 3}' "bad.jsonl: line 1: a conversation is number where" --template hf:chatml
wrong '[' "bad.jsonl: line 1 is not JSON" --template hf:chatml
wrong '{"prompt": "a", "completion": "b"}' "chat_template.jinja: line 2: the template refuses the conversation: no system" \
  --template hf:refuses
wrong '{"messages": []}' "'messages' needs a chat template"
expect_error "each conversation has more than 3 tokens" \
  "$switchyard" prepare --chat talk=talk.jsonl --template hf:chatml --max-tokens 3 --output bad

# Without a template, prompt and completion are joined. Long examples are left out and counted.
echo '{"prompt": "2+2=", "completion": "4"}' >joined.jsonl
printf '{"prompt": "long", "completion": "%s"}\n' "$long" >>joined.jsonl
expect_ok "$switchyard" prepare --chat j=joined.jsonl --max-tokens 20 --valid-fraction 0 --output joined --json
[[ $out == *'"long": 1'* ]] || die "the long example is not counted"
expect_output '"tokens": 6'

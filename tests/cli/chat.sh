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
perl - data/talk.train <<'PERL' || die "the loss mask is wrong"
sub content { open my $file, "<:raw", $_[0] or die "$_[0]: $!"; local $/; return <$file> }
my ($idx, $tokens) = map { content("$ARGV[0].$_") } "idx", "bin";
my ($sequences, $boundaries) = unpack "Q<Q<", substr $idx, 18, 16;
my @lengths = unpack "l<$sequences", substr $idx, 34;
my @modes = unpack "c*", substr $idx, 34 + 12 * $sequences + 8 * $boundaries;
die "$sequences sequences, $boundaries boundaries" if @modes != $sequences or $sequences != 2 * ($boundaries - 1);
my $at = 0;
for my $i (0 .. $#lengths) {
  my @ids = unpack "S<$lengths[$i]", substr $tokens, 2 * $at;
  $at += $lengths[$i];
  die "mode $modes[$i] of sequence $i" if $modes[$i] != 1 - $i % 2;
  my $text = join "", map { $_ < 256 ? chr : "#" } @ids;
  die $text unless $text =~ ($modes[$i] ? qr{^<u>count [^#]*</u><a>$} : qr{^wagon [^#]*</a>[^#]*#$}s);
}
die "tokens are left" if 2 * $at != length $tokens;
PERL
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
losses() { sed -E 's/.*"loss":([^,]*).*/\1/' "$1/metrics.jsonl"; }
paste <(losses one) <(losses two) | head -3 | awk '{ d = $1 - $2; if (d > 1e-4 || d < -1e-4) exit 1 }' ||
  die "the losses of two ranks are not those of one"
awk -v loss="$(losses one | tail -1)" 'BEGIN { exit !(loss < 0.5) }' || die "the last loss is $(losses one | tail -1)"
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

# Two line ends are one token at the end of a text, and two tokens before other text. They do not
# count at the end of a prompt, and count at the end of an answer.
mkdir lines
cat >lines/chat_template.jinja <<'JINJA'
{% for message in messages %}{{ message.role[0] ~ ':\n\n' ~ message.content ~ '\n\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'a:\n\n' }}{% endif %}
JINJA
cat >lines/tokenizer.json <<'JSON'
{"added_tokens": [{"id": 11, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
  "normalized": false, "special": true}],
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
 "decoder": {"type": "ByteLevel"},
 "model": {"type": "BPE", "merges": ["Ċ Ċ"],
  "vocab": {"Ċ": 0, "ĊĊ": 1, ":": 2, "u": 3, "a": 4, "h": 5, "i": 6, "y": 7, "e": 8, "s": 9, "n": 10}}}
JSON
echo '{"eos_token": "<|endoftext|>"}' >lines/tokenizer_config.json
echo '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}' >lines.jsonl
expect_ok "$switchyard" prepare --chat c=lines.jsonl --template hf:lines --tokenizer hf:lines --valid-fraction 0 --output lines-data --quiet
ids=$(od -An -v -tu2 lines-data/c.train.bin | tr -s ' \n' ' ')
[[ $ids == " 3 2 0 0 5 6 0 0 4 2 0 0 7 8 9 0 0 3 2 0 0 5 6 0 0 4 2 0 0 7 8 9 1 11 " ]] || die "other tokens: $ids"
lengths=$(od -An -v -tu4 -j34 -N16 lines-data/c.train.idx | tr -s ' \n' ' ')
[[ $lengths == " 12 5 12 5 " ]] || die "other lengths of prompts and answers: $lengths"

# A token of a blank alone is no end of an answer, although some decoders drop it.
mkdir blanks
echo '{% for m in messages %}{{ m.content }}#{% endfor %}' >blanks/chat_template.jinja
{
  echo '{"added_tokens": [{"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},'
  echo '{"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],'
  for part in pre_tokenizer decoder; do
    echo "\"$part\": {\"type\": \"Metaspace\", \"replacement\": \"▁\", \"prepend_scheme\": \"always\", \"split\": true},"
  done
  printf '"model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [["<unk>", 0.0], ["</s>", 0.0], ["▁", -2.0], ["#", -3.0]'
  for letter in a c d e g h m n o s t; do printf ', ["%s", -3.0]' $letter; done
  echo ']}}'
} >blanks/tokenizer.json
echo '{"eos_token": "</s>"}' >blanks/tokenizer_config.json
for _ in $(seq 40); do echo '{"messages": [{"role": "user", "content": "the dog"}, {"role": "assistant", "content": "sat on the mat"}]}'; done >blanks.jsonl
expect_ok "$switchyard" prepare --chat c=blanks.jsonl --template hf:blanks --tokenizer hf:blanks --output blanks-data --quiet
expect_ok "$switchyard" train small.ini --run.dir=blanks-run --data.path=blanks-data --quiet
ask() { echo "the dog" | "$switchyard" generate blanks-run --chat --temperature 0 --tokens 20; }
expect_ok ask
[[ $out == *"sat on the mat" ]] || die "the answer is '$out'"

# The mask of an answer that begins like the end of its prompt.
mkdir thinks
cat >thinks/chat_template.jinja <<'JINJA'
{% for m in messages %}{{ '<' ~ m.role[0] ~ '>' ~ m.content ~ '</' ~ m.role[0] ~ '>' }}{% endfor %}
{% if add_generation_prompt %}{{ '<a><think>' }}{% endif %}
{% if tools is not none or documents is not none %}TOOLS{% endif %}
JINJA
echo '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<table>x"}]}' >thinks.jsonl
expect_ok "$switchyard" prepare --chat c=thinks.jsonl --template hf:thinks --valid-fraction 0 --output thinks-data --quiet
[[ $(head -c 24 thinks-data/c.train.bin | tr -d '\0') == "<u>hi</u><a>" ]] || die "another text: $(tr -d '\0' <thinks-data/c.train.bin)"
# Lengths of the first sequences: the prompt, whose loss does not count, and the answer.
[[ $(od -An -t d4 -j 34 -N 8 thinks-data/c.train.idx | tr -s ' ') == " 12 13" ]] ||
  die "the mask begins elsewhere: $(od -An -t d4 -j 34 -N 8 thinks-data/c.train.idx)"
[[ $(tr -d '\0' <thinks-data/c.train.bin) != *TOOLS* ]] || die "tools and documents are not none"
# A conversation with tools has the template of that name.
mkdir tools
cat >tools/tokenizer_config.json <<'JSON'
{"chat_template": [{"name": "default", "template": "{% for m in messages %}{{ m.content }};{% endfor %}"},
                   {"name": "tool_use", "template": "{{ tools | length }} tools: {% for m in messages %}{{ m.content }};{% endfor %}"}]}
JSON
{
  echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": [{"type": "function"}]}'
  echo '{"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}'
} >tools.jsonl
expect_ok "$switchyard" prepare --chat c=tools.jsonl --template hf:tools --valid-fraction 0 --output tools-data --quiet
grep -qa "1 tools: a;b;.*c;d;" <(tr -d '\0' <tools-data/c.train.bin) || die "another template: $(tr -d '\0' <tools-data/c.train.bin)"

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

#!/usr/bin/env bash
# Tests the page of `switchyard experts --html` in a browser, light and dark, wide and narrow.
# - The page loads nothing, and logs no message to the console.
# - No element is wider than the window, and no picture is too small to read.
# - No text in a picture is cut off or overlaps another text.
# If there is no Chromium, the exit code is 77, and the reason is printed.
source "$2/tests/cli/lib/lib.sh"
browser=${SWITCHYARD_CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
[[ -n $browser ]] || skip "there is no Chromium: apt-get install chromium"

mkdir -p text/en text/de
for i in $(seq 1 150); do
  echo "the wagon $i rolls down the hump and is braked on track $((i * 7 % 31))" >"text/en/$i"
  echo "der Wagen $i rollt den Ablaufberg hinab, größer als $((i % 9))" >"text/de/$i"
done
expect_ok "$switchyard" prepare --domain english=text/en --domain german-of-railways=text/de --tokenizer bytes \
  --valid-fraction 0.2 --output data
small_config <<'INI'
[train]
steps = 20
global_batch = 4
micro_batch = 4
[run]
backend = cpu
log_every = 2
checkpoint_every = 10
keep = 5
INI
expect_ok "$switchyard" train config.ini --run.dir=run --moe.bias_update_rate=0.01 --moe.capacity_factor=1.25 --model.layers=10
expect_ok "$switchyard" train config.ini --run.dir=other --moe.experts=16 --model.layers=2
expect_ok "$switchyard" evaluate run --backend cpu
expect_ok "$switchyard" experts run --replay data --against run/checkpoints/step-00000010 --ablate data --layer 1 --max-windows 2 \
  --placement ep=2 --compare run/checkpoints/step-00000010 --html layer.html
expect_ok "$switchyard" experts run --replay data --max-windows 2 --html all.html
expect_ok "$switchyard" experts other --ablate data --reroute --max-windows 1 --html other.html

cat >check.js <<'JS'
<script>
const wrong = [], seen = {width: innerWidth, background: getComputedStyle(document.body).backgroundColor, texts: 0};
if (document.documentElement.scrollWidth > innerWidth) wrong.push(`the page is ${document.documentElement.scrollWidth} wide`);
for (const entry of performance.getEntriesByType("resource")) wrong.push(`fetched: ${entry.name}`);
const ink = getComputedStyle(document.body).color;
for (const svg of document.querySelectorAll("svg")) {
  const box = svg.getBoundingClientRect(), name = svg.getAttribute("aria-label");
  if (box.width == 0) continue;  // of another kind of screen
  if (box.width < 0.7 * svg.viewBox.baseVal.width) wrong.push(`${name}: too small to be read`);
  const text_boxes = [...svg.querySelectorAll("text")].filter(t => t.textContent.trim()).map(t => [t, t.getBoundingClientRect()]);
  if (!text_boxes.some(([t, _]) => getComputedStyle(t).fill == ink)) wrong.push(`${name}: no text in the page's colour`);
  seen.texts += text_boxes.length;
  text_boxes.forEach(([t, a], i) => {
    if (a.left < box.left - 1 || a.right > box.right + 1 || a.top < box.top - 1 || a.bottom > box.bottom + 1)
      wrong.push(`${name}: cut off: ${t.textContent}`);
    for (const [u, b] of text_boxes.slice(i + 1))
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)
        wrong.push(`${name}: on each other: ${t.textContent} and ${u.textContent}`);
  });
}
document.body.dataset.seen = JSON.stringify(seen);
document.body.dataset.wrong = JSON.stringify(wrong);
</script>
JS
look() {  # PAGE WIDTH SCHEME (0: dark, 1: light) BACKGROUND
  { sed 's|</body>||; s|</html>||' "$1"; cat check.js; } >checked.html
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --window-size="$2,900" \
    --blink-settings=preferredColorScheme="$3" --host-resolver-rules="MAP * ~NOTFOUND" --enable-logging=stderr --v=0 \
    --dump-dom "file://$work/checked.html" >dom.html 2>browser.log || die "the browser failed: $(tail -3 browser.log)"
  ! grep CONSOLE browser.log || die "$1 has messages on the console"
  seen=$(grep -o 'data-seen="[^"]*"' dom.html | sed 's/&quot;/"/g') || die "$1 was not looked at"
  [[ $seen == *"\"width\":$2,"* && $seen == *"$4"* ]] || die "$1: $seen instead of width $2 and $4"
  [[ $seen != *'"texts":0}'* ]] || die "$1 has no text in its pictures"
  grep -q 'data-wrong="\[\]"' dom.html || die "$1 at $2: $(grep -o 'data-wrong="[^"]*"' dom.html | sed 's/&quot;,&quot;/\n/g' | head -20)"
}
for page in layer.html all.html other.html; do
  for width in 1400 500; do  # Chromium has no narrower windows
    look $page $width 1 "rgb(248, 250, 252)"
    look $page $width 0 "rgb(15, 23, 42)"
  done
done
# The page contains these texts.
look layer.html 1400 1 "rgb(248, 250, 252)"
for text in 'saturation' 'co-activation' 'What each expert is worth' 'max/mean, placed' 'selection bias' 'nats per token'; do
  grep -q "$text" dom.html || die "no $text on the page"
done

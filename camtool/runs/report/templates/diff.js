// The images of a comparison: filtered, sorted, and walked through by keys. Without this script all are shown.

const pairs = [...document.querySelectorAll('.pair')];

function update() {
  const label = $('class').value;
  const key = $('sort').value;
  const compare = {
    moved: (one, two) => two.dataset.moved - one.dataset.moved,
    correlation: (one, two) => one.dataset.correlation - two.dataset.correlation,
    image: (one, two) => one.dataset.image.localeCompare(two.dataset.image, undefined, { numeric: true }),
  }[key];
  $('pairs').append(...pairs.sort(compare));
  for (const pair of pairs) {
    pair.hidden = (label !== '' && pair.dataset.class !== label) || ($('other').checked && !('other' in pair.dataset));
  }
  const shown = pairs.filter((pair) => !pair.hidden).length;
  const count = Number($('pairs').dataset.count);
  $('count').textContent = (shown < count ? `${formatInteger(shown)} of ` : '') + countOf(count, 'image');
  $('empty').hidden = shown > 0;
}

function walk(step) {
  const shown = pairs.filter((pair) => !pair.hidden);
  if (!shown.length) return;
  const place = shown.indexOf(document.activeElement?.closest('.pair'));
  const next = shown[place < 0 ? 0 : Math.min(Math.max(place + step, 0), shown.length - 1)];
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: 'center' });
}

for (const name of ['class', 'other', 'sort']) $(name).addEventListener('change', update);
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('select, input')) return;
  const key = event.key.toLowerCase();
  if (key === 'j' || key === 'k') walk(key === 'j' ? 1 : -1);
});
$('toolbar').hidden = pairs.length === 0;
update();

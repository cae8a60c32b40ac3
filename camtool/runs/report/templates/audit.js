// The user's verdicts: marked by button or key, kept in the browser, and saved as verdicts.json.

const data = JSON.parse($('data').textContent);
const articles = [...document.querySelectorAll('.finding')];
const VERDICTS = ['object', 'shortcut', 'unsure'];
const FILE = 'verdicts.json';
const stored = `verdicts ${location.pathname}`;
const storedInFile = `saved ${stored}`;

/** What the user changed since the page was written: key → [verdict of the page, verdict of the user]. */
let changes = {};
let folder = null;

function readChanges() {
  try {
    const kept = Object.entries(JSON.parse(recall(stored)) ?? {});
    // A verdict that was given elsewhere since then counts more.
    changes = Object.fromEntries(kept.filter(([key, [before]]) => before === (data.verdicts[key] ?? null)));
  } catch {
    changes = {};
  }
}

function getVerdict(key) {
  return key in changes ? changes[key][1] : data.verdicts[key] ?? null;
}

function mark(article, verdict) {
  const key = data.keys[articles.indexOf(article)];
  const before = data.verdicts[key] ?? null;
  const chosen = getVerdict(key) === verdict ? null : verdict;
  if (chosen === before) delete changes[key];
  else changes[key] = [before, chosen];
  remember(stored, JSON.stringify(changes));
  show();
}

function show(note = '') {
  let count = 0;
  articles.forEach((article, number) => {
    const verdict = getVerdict(data.keys[number]);
    count += verdict !== null;
    article.dataset.verdict = verdict ?? '';
    for (const button of article.querySelectorAll('[data-verdict]')) {
      button.setAttribute('aria-pressed', String(button.dataset.verdict === verdict));
    }
  });
  $('judged').textContent = `${count} of ${countOf(articles.length, 'finding')} judged`;
  const isSaved = !Object.keys(changes).length || recall(storedInFile) === JSON.stringify(changes);
  $('note').textContent = note || (isSaved ? '' : 'Not saved to a file yet');
}

/** Return all verdicts: those that were there, which may be of other findings, and the user's. */
function merge(known) {
  const all = { ...known };
  for (const key of data.keys) {
    const verdict = getVerdict(key);
    if (verdict === null) delete all[key];
    else all[key] = verdict;
  }
  return `${JSON.stringify(all, null, 1)}\n`;
}

/** Write the file into the folder of the audit; return null if the user chose another folder, or none. */
async function saveInPlace() {
  folder ??= await showDirectoryPicker({ id: 'camtool-audit', mode: 'readwrite' });
  try {
    await folder.getFileHandle('audit.json');
  } catch {
    folder = null;
    return `There is no audit.json in that folder; choose the folder of this page.`;
  }
  const handle = await folder.getFileHandle(FILE, { create: true });
  const text = await (await handle.getFile()).text();
  const stream = await handle.createWritable();
  await stream.write(merge(text ? JSON.parse(text) : data.verdicts));
  await stream.close();
  remember(storedInFile, JSON.stringify(changes));
  return `Saved in ${folder.name}/${FILE}`;
}

function download() {
  const url = URL.createObjectURL(new Blob([merge(data.verdicts)], { type: 'application/json' }));
  make('a', { href: url, download: FILE }).click();
  URL.revokeObjectURL(url);
  remember(storedInFile, JSON.stringify(changes));
  return `Downloaded; move ${FILE} into the folder of this page`;
}

async function save() {
  try {
    show('showDirectoryPicker' in window ? await saveInPlace() : download());
  } catch (error) {
    if (error.name !== 'AbortError') show(download());
  }
}

/** Return the finding with the focus: keys mark no other one. */
function getCurrent() {
  return document.activeElement?.closest('.finding');
}

function walk(step) {
  const place = articles.indexOf(getCurrent());
  const next = articles[place < 0 ? 0 : Math.min(Math.max(place + step, 0), articles.length - 1)];
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: 'start' });
}

if (articles.length) {
  document.addEventListener('click', (event) => {
    const button = event.target.closest('.verdicts [data-verdict]');
    if (button) mark(button.closest('.finding'), button.dataset.verdict);
  });
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    if (key === 'j' || key === 'k') walk(key === 'j' ? 1 : -1);
    else if (['1', '2', '3'].includes(key) && getCurrent()) mark(getCurrent(), VERDICTS[key - 1]);
  });
  $('save').addEventListener('click', save);
  readChanges();
  show();
}

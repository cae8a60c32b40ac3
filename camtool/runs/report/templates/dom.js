// Elements. All text goes in as text, never as markup, so that no label or file name can become an element.

const $ = (id) => document.getElementById(id);

/** Return a new element. `text` is its text; names with "on" are listeners; others are attributes. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'text') element.textContent = value;
    else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Return an icon of the page's sprite; a screen reader skips it. */
function makeIcon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  const use = document.createElementNS('http://www.w3.org/2000/svg', 'use');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  use.setAttribute('href', `#icon-${name}`);
  svg.append(use);
  return svg;
}

const formatInteger = new Intl.NumberFormat('en-US').format;
const formatScore = new Intl.NumberFormat('en-US', { maximumSignificantDigits: 4, useGrouping: false }).format;

function countOf(number, thing) {
  return `${formatInteger(number)} ${thing}${number === 1 ? '' : 's'}`;
}

/** Return a probability in a few characters; never 0% or 100% of one that is not. */
function formatPercent(probability) {
  if (probability > 0 && probability < 0.005) return '<1%';
  if (probability < 1 && probability >= 0.995) return '>99%';
  return `${Math.round(probability * 100)}%`;
}

/** Call a function at most once before the next frame. */
function oncePerFrame(callback) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      callback();
    });
  };
}

/** Remember a choice for the next visit; from disk, some browsers refuse. */
function remember(name, value) {
  try {
    localStorage.setItem(`camtool-report-${name}`, value);
  } catch {
    // The choice lasts until the page is closed.
  }
}

function recall(name) {
  try {
    return localStorage.getItem(`camtool-report-${name}`);
  } catch {
    return null;
  }
}

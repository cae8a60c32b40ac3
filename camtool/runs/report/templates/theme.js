// Light and dark colors: as the system says, or as the user chose.

const systemDark = matchMedia('(prefers-color-scheme: dark)');

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : systemDark.matches;
}

function updateTheme() {
  $('theme').setAttribute('aria-label', isDark() ? 'Switch to light colors' : 'Switch to dark colors');
  $('theme').replaceChildren(makeIcon(isDark() ? 'sun' : 'moon'));
}

$('theme').addEventListener('click', () => {
  document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
  remember('theme', document.documentElement.dataset.theme);
  updateTheme();
});
systemDark.addEventListener('change', updateTheme);

const chosenTheme = recall('theme');
if (chosenTheme === 'dark' || chosenTheme === 'light') document.documentElement.dataset.theme = chosenTheme;
updateTheme();

// A list's buttons carry what they do in data- attributes: a click triggers `click` with these data, or the event that
// data-event names. After an update the focus follows the button that was pressed, wherever its row went.
const NAMES = ['do', 'job', 'kind', 'name', 'setting', 'way'];
let last = null, pressed = 0;
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-do]');
  if (!button || button.disabled || button.getAttribute('aria-disabled') === 'true') return;
  last = {...button.dataset};
  pressed = Date.now();
  trigger(button.dataset.event || 'click', {...button.dataset});
});
watch('value', () => {
  if (!last || Date.now() - pressed > 5000 || !element.contains(document.activeElement)) return;
  const same = [...element.querySelectorAll('button[data-do]')].find(
    (button) => NAMES.every((name) => button.dataset[name] === last[name]) && !button.disabled);
  if (same && same !== document.activeElement) same.focus();
});

// A list's buttons carry what they do in data- attributes: a click triggers `click` with these data, or the event that
// data-event names. After an update the focus follows the button that was pressed.
let last = null;
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-do]');
  if (!button || button.disabled || button.getAttribute('aria-disabled') === 'true') return;
  last = {...button.dataset};
  trigger(button.dataset.event || 'click', {...button.dataset});
});
watch('value', () => {
  if (!last || !element.contains(document.activeElement)) return;
  const same = [...element.querySelectorAll('button[data-do]')].find(
    (button) => Object.keys(last).every((key) => button.dataset[key] === last[key]) && !button.disabled);
  if (same && same !== document.activeElement) same.focus();
  last = null;
});

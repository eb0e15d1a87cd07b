// On a narrow page a row's reasons and figures are folded away: its button shows them, and an update leaves them shown.
const opened = new Set();
const showOpened = () => element.querySelectorAll('.kt-details').forEach((button) => {
  const open = opened.has(button.dataset.row);
  button.setAttribute('aria-expanded', open);
  button.closest('tr').classList.toggle('kt-opened', open);
});
element.addEventListener('click', (event) => {
  const button = event.target.closest('.kt-details');
  if (!button) return;
  if (!opened.delete(button.dataset.row)) opened.add(button.dataset.row);
  showOpened();
});
watch('value', showOpened);

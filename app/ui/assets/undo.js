// Shows the offer for its seconds; Ctrl+Z takes it while nothing is being typed.
let timer = null;
const show = () => {
  clearTimeout(timer);
  const bar = element.querySelector('.kt-toast');
  if (!bar) return;
  bar.hidden = false;
  timer = setTimeout(() => { bar.hidden = true; }, Number(bar.dataset.seconds) * 1000);
};
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-do]');
  if (button) trigger('undo', {...button.dataset});
});
document.addEventListener('keydown', (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || event.target.isContentEditable;
  if (typing || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.key.toLowerCase() !== 'z') return;
  const button = element.querySelector('.kt-toast:not([hidden]) button[data-do]');
  if (button && button.offsetParent !== null) { event.preventDefault(); button.click(); }
});
watch('value', show);

// A word that is clicked goes to the end of the prompt, as if it were typed there.
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-word]');
  const prompt = document.querySelector('#kt-prompt textarea');
  if (!button || !prompt) return;
  const before = prompt.value.trimEnd();
  prompt.value = before + (before ? ' ' : '') + button.dataset.word;
  prompt.dispatchEvent(new Event('input', {bubbles: true}));
});

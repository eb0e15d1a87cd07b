() => {
  // What stands in the model's box is a choice and no beginning of one: what is typed there takes its place.
  document.addEventListener('focusin', (event) => {
    const box = event.target.closest('#kt-model input');
    if (box) requestAnimationFrame(() => box.select());
  });
  // Settings that were taken over are seen, wherever the page was scrolled to; another tab has to be there first.
  window.kinetile = Object.assign(window.kinetile || {}, {toForm() {
    setTimeout(() => {
      const form = document.querySelector('.kt-request');
      if (form.getBoundingClientRect().top < 0) form.scrollIntoView({block: 'start'});
    }, 100);
  }});
  // The keyboard: Ctrl+Enter generates from anywhere, Esc cancels unless something open takes it.
  const onCreate = () => { const button = document.getElementById('kt-generate'); return button && button.offsetParent !== null ? button : null; };
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
      const button = onCreate();
      if (!button) return;
      event.preventDefault(); event.stopPropagation();
      // What was typed last must have reached the form first.
      setTimeout(() => button.click(), 60);
    } else if (event.key === 'Escape' && !event.defaultPrevented) {
      const open = document.querySelector('ul.options, [role=dialog], dialog[open]');
      if (!open && onCreate() && window.kinetile && window.kinetile.running()) { event.preventDefault(); window.kinetile.cancel(); }
    }
  }, true);
}

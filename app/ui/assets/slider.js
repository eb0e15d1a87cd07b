// Gradio's slider loads its pictures once they are scrolled to. These two are small and in the page already.
const load = () => {
  for (const picture of document.querySelectorAll('#kt-slider img[loading=lazy]')) picture.loading = 'eager';
};
new MutationObserver(load).observe(element.closest('.column'), {childList: true, subtree: true});
load();

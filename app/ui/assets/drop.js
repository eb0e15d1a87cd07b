// A file dropped anywhere on the page is uploaded and shown as a preset; fields that take files keep theirs.
let depth = 0;
const veil = element.querySelector('.kt-drop');
const files = (event) => event.dataTransfer && [...event.dataTransfer.types].includes('Files');
const taken = (event) => event.target.closest && event.target.closest('[data-testid="file-upload"], .kt-own-drop');
document.addEventListener('dragenter', (event) => { if (files(event)) { depth += 1; veil.hidden = false; } });
document.addEventListener('dragleave', (event) => {
  if (files(event) && --depth <= 0) { depth = 0; veil.hidden = true; }
});
document.addEventListener('dragover', (event) => { if (files(event)) event.preventDefault(); });
document.addEventListener('drop', async (event) => {
  depth = 0; veil.hidden = true;
  if (!files(event) || event.defaultPrevented || taken(event)) return;
  event.preventDefault();
  const file = event.dataTransfer.files[0];
  if (!file) return;
  try {
    const { path } = await upload(file);
    trigger('upload', { path, name: file.name });
  } catch (error) {
    trigger('upload', { path: '', name: file.name });
  }
});

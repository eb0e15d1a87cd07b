// A file dropped anywhere on the page is uploaded and its place told as an `upload` event. Fields that take files
// themselves keep what is dropped on them.
const veil = element.querySelector('.kt-drop');
let depth = 0;
const cover = (shown) => { if (!shown) depth = 0; veil.hidden = !shown; };
const brings = (event) => event.dataTransfer && [...event.dataTransfer.types].includes('Files');
document.addEventListener('dragenter', (event) => { if (brings(event)) { depth += 1; cover(true); } });
document.addEventListener('dragleave', (event) => { if (brings(event) && --depth <= 0) cover(false); });
document.addEventListener('dragover', (event) => { if (brings(event)) event.preventDefault(); });
document.addEventListener('drop', async (event) => {
  cover(false);
  if (!brings(event) || event.defaultPrevented) return;
  event.preventDefault();
  const file = event.dataTransfer.files[0];
  if (!file) return;
  let path = '';
  try { ({ path } = await upload(file)); } catch (error) { /* too large, or the server is away: said in Python */ }
  trigger('upload', { path, name: file.name });
});

// A file is chosen with the button, uploaded, and its place told as an `upload` event.
const input = element.querySelector('input[type=file]');
element.querySelector('button').addEventListener('click', () => input.click());
input.addEventListener('change', async () => {
  const file = input.files[0];
  input.value = '';
  if (!file) return;
  let path = '';
  try { ({ path } = await upload(file)); } catch (error) { /* too large, or the server is away: said in Python */ }
  trigger('upload', { path, name: file.name });
});

// A picture of the request: chosen with the button or dropped here, shown small, taken away again. The field's value is
// the name under which the server keeps it; what is drawn follows the value, whoever set it.
const part = (name) => element.querySelector('.kp-' + name);
let last = {}, looked = '';

function draw() {
  const image = part('thumb');
  part('problem').textContent = last.error || '';
  part('about').textContent = last.about || '';
  image.hidden = !last.picture;
  if (last.picture) image.src = last.picture; else image.removeAttribute('src');
  part('remove').hidden = !props.value;
  part('choose').textContent = props.value ? 'Another' : 'Choose';
}

async function look() {
  const name = props.value || '';
  if (name === looked) { draw(); return; }
  looked = name;
  const found = name ? await server.look({name}) : {};
  if (looked === name) { last = found; draw(); }
}

function put(name) {
  props.value = name;
  trigger('change');
}

async function take(file) {
  if (!file) return;
  last = {about: 'Uploading …'};
  draw();
  let path = '';
  try { ({ path } = await upload(file)); } catch (error) { /* too large, or the server is away: said in Python */ }
  last = await server.keep({path, name: file.name});
  if (last.error) { draw(); return; }
  looked = last.name;
  put(last.name);
  draw();
}

element.addEventListener('click', (event) => {
  const button = event.target.closest('button');
  if (!button) return;
  if (button.dataset.do === 'choose') element.querySelector('input[type=file]').click();
  if (button.dataset.do === 'remove') { looked = ''; last = {}; put(''); draw(); part('choose').focus(); }
});
element.addEventListener('change', (event) => {
  if (event.target.type !== 'file') return;
  event.stopPropagation();
  const file = event.target.files[0];
  event.target.value = '';
  take(file);
});
const brings = (event) => event.dataTransfer && [...event.dataTransfer.types].includes('Files');
element.addEventListener('dragover', (event) => { if (brings(event)) event.preventDefault(); });
element.addEventListener('drop', (event) => {
  if (!brings(event) || !event.dataTransfer.files.length) return;
  event.preventDefault();
  take(event.dataTransfer.files[0]);
});
watch('value', look);
look();

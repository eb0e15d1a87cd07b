// The accelerators that were taken over, in words that the server has for the field's value; the button empties it.
const line = element.querySelector('.kc-line'), words = line.querySelector('p');
let asked = null;

async function draw() {
  const value = props.value || '';
  if (value === asked) return;
  asked = value;
  const told = value ? await server.told({value}) : '';
  if (asked !== value) return;
  words.textContent = told;
  line.hidden = !told;
}

line.querySelector('button').addEventListener('click', () => {
  props.value = '';
  trigger('change');
  draw();
  const generate = document.getElementById('kt-generate');
  if (generate) generate.focus();
});
watch('value', draw);
draw();

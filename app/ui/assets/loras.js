// The request's LoRAs: a row each with its strength, and a list of those that can be added. The field's value is JSON,
// {"model", "loras"}; what is drawn follows it, whoever set it. A row that is being typed in is left alone.
const part = (name) => element.querySelector('.kl-' + name);
const NOISES = {auto: 'by its name', both: 'both', high: 'high noise', low: 'low noise'};
let listed = {choices: [], two: false, nothing: ''}, asked = null, moment = 0;

function held() {
  try { return JSON.parse(props.value || '{}'); } catch (error) { return {}; }
}

function put(loras) {
  props.value = JSON.stringify({model: held().model || '', loras});
  trigger('change');
  draw();
}

const made = (tag, values) => Object.assign(document.createElement(tag), values);

function row(lora, index) {
  const node = made('li', {className: 'kl-row'});
  const choice = listed.choices.find((one) => one.name === lora.name);
  const title = made('span', {className: 'kl-name', textContent: lora.name, title: lora.name});
  const strength = made('input', {type: 'number', step: 0.05, min: -10, max: 10, value: lora.weight ?? 1});
  strength.setAttribute('aria-label', `Strength of ${lora.name}`);
  strength.addEventListener('change', (event) => {
    event.stopPropagation();
    const weight = Number(strength.value);
    if (strength.value === '' || !Number.isFinite(weight)) { strength.value = lora.weight ?? 1; return; }
    put(held().loras.map((one, i) => i === index ? {...one, weight} : one));
  });
  node.append(title);
  if (listed.two) node.append(noise(lora, index));
  const remove = made('button', {type: 'button', className: 'kt-do', textContent: 'Remove'});
  remove.setAttribute('aria-label', `Remove ${lora.name}`);
  remove.addEventListener('click', () => { put(held().loras.filter((_, i) => i !== index)); part('add').focus(); });
  node.append(strength, remove);
  const problem = choice ? choice.problem : asked === null ? '' : listed.missing;
  if (problem) node.append(made('span', {className: 'kt-problem kl-why', textContent: problem}));
  return node;
}

function noise(lora, index) {
  const select = made('select', {title: 'Which of the two transformers it is for'});
  select.setAttribute('aria-label', `Transformer of ${lora.name}`);
  for (const [value, text] of Object.entries(NOISES)) select.append(made('option', {value, textContent: text}));
  select.value = lora.noise || 'auto';
  select.addEventListener('change', (event) => {
    event.stopPropagation();
    put(held().loras.map((one, i) => i === index ? {...one, noise: select.value} : one));
  });
  return select;
}

function draw() {
  const loras = held().loras || [], rows = part('rows');
  const shape = JSON.stringify([loras.map(({weight, ...rest}) => rest), listed]);
  if (rows.dataset.shape !== shape) {
    rows.dataset.shape = shape;
    rows.replaceChildren(...loras.map(row));
  } else {
    for (const [index, node] of [...rows.children].entries()) {
      const field = node.querySelector('input');
      if (field !== document.activeElement) field.value = loras[index].weight ?? 1;
    }
  }
  const add = part('add'), choices = JSON.stringify(listed.choices);
  if (add.dataset.choices !== choices) {
    add.dataset.choices = choices;
    add.replaceChildren(made('option', {value: '', textContent: 'Add a LoRA …'}), ...listed.choices.map((one) =>
      made('option', {value: one.name, textContent: one.about, title: one.problem, disabled: !!one.problem})));
  }
  add.hidden = !listed.choices.length;
  part('nothing').textContent = listed.choices.length ? '' : listed.nothing;
}

async function refresh(again) {
  const model = held().model || '';
  if (!model || (!again && model === asked) || (again && Date.now() - moment < 2000)) { draw(); return; }
  asked = model;
  moment = Date.now();
  const found = await server.listed({model});
  if (asked === model) { listed = found; draw(); }
}

element.addEventListener('change', (event) => {
  if (event.target !== part('add')) return;
  event.stopPropagation();
  const name = event.target.value;
  event.target.value = '';
  if (name) put([...(held().loras || []), {name, weight: 1}]);
});
element.addEventListener('pointerenter', () => refresh(true));  // files may have come meanwhile
watch('value', () => refresh(false));
refresh(false);

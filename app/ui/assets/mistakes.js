// Puts each sentence under its field and marks the field. Gradio makes some fields anew when they come into sight, so
// the marks are set again then.
const id = (name) => 'kt-' + name.replaceAll('_', '-');
const control = (name) => document.querySelector(
  ['input:not([type=file])', 'textarea', 'select:not([hidden])', 'button'].map((tag) => `#${id(name)} ${tag}`).join(', '));
let told = {}, asked = 0, missing = null;

function held() {
  try { return JSON.parse(props.value || '{}'); } catch (error) { return {}; }
}

// That the model is not here is told when Generate was pressed, and then, whatever else is typed, until another one is
// chosen or it is being fetched.
function withMissing(now) {
  const box = control('model'), fields = now.fields || {};
  if (now.asked) missing = fields.model ? {choice: box.value, model: fields.model} : null;
  else if (!document.querySelector('#kt-model-here .kt-not-here') || (missing && missing.choice !== box.value)) missing = null;
  return missing && !fields.model ? {model: missing.model, ...fields} : fields;
}

function mark() {
  for (const node of document.querySelectorAll('.kt-request [aria-invalid=true]')) {
    if (node.closest('.kt-wrong') && Object.keys(told).some((name) => control(name) === node)) continue;
    node.removeAttribute('aria-invalid');
    node.removeAttribute('aria-describedby');
  }
  for (const node of document.querySelectorAll('.kt-wrong')) {
    if (!Object.keys(told).some((name) => id(name) === node.id)) node.classList.remove('kt-wrong');
  }
  for (const name of Object.keys(told)) {
    const node = control(name), around = document.getElementById(id(name));
    if (around && !around.classList.contains('kt-wrong')) around.classList.add('kt-wrong');
    if (!node || node.getAttribute('aria-invalid') === 'true') continue;
    node.setAttribute('aria-invalid', 'true');
    node.setAttribute('aria-describedby', 'kt-why-' + name);
  }
}

function draw() {
  const now = held();
  told = withMissing(now);
  for (const place of document.querySelectorAll('.kt-why')) {
    const names = place.dataset.for.split(' ').filter((name) => told[name]);
    if (place.dataset.said === JSON.stringify(names.map((name) => told[name]))) continue;
    place.dataset.said = JSON.stringify(names.map((name) => told[name]));
    place.replaceChildren(...names.map((name) => Object.assign(
      document.createElement('p'), {className: 'kt-problem', id: 'kt-why-' + name, textContent: told[name]})));
  }
  mark();
  if (now.asked && now.asked !== asked) { asked = now.asked; show(Object.keys(told)[0]); }
}

// The first field that is wrong, also where it is folded away; the model's list would cover what is said below it.
function show(name) {
  const fetch = name === 'model' && document.querySelector('#kt-model-here button');
  const node = fetch || control(name);
  if (!node) return;
  const folded = node.closest('.kt-more');
  if (folded && node.offsetParent === null) folded.querySelector('button').click();
  setTimeout(() => { node.focus({preventScroll: true}); node.scrollIntoView({block: 'center'}); }, folded ? 60 : 0);
}

new MutationObserver(() => { if (Object.keys(told).length) mark(); })
  .observe(document.querySelector('.kt-request'), {childList: true, subtree: true});
watch('value', draw);
draw();

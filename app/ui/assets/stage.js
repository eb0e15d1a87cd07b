// The stage: preview and player, progress, facts, recent clips. Data comes from the server's `poll`; nodes are kept, so
// nothing flickers or jumps. The clip on the stage follows the work unless the person chose another one.
const part = (name) => element.querySelector('.ks-' + name);
const every = {running: 400, idle: 1200, hidden: 4000};
const state = {revision: '', preview: [0, 0], clip: null, chosen: 0, running: null, recent: [], wanted: null, ended: 0, spoke: 0, pressed: 0};
let timer = null, asking = false, again = false;

const text = (node, words) => { if (node.textContent !== words) node.textContent = words; };

// A cancel is what the person wanted, and no error.
function trouble(words, calm = false) {
  text(part('trouble'), words);
  part('trouble').classList.toggle('ks-calm', calm);
}

// Unlike progress, which keeps to one line so that nothing jumps, it is shown whole.
function noAnswer(words) {
  text(part('now'), words);
  part('now').classList.add('ks-lost');
}

function size(width, height) {
  part('picture').style.setProperty('--ks-ratio', width / height);
}

function show(what) {
  const picture = part('picture'), video = part('video');
  if (picture.dataset.show === what) return;
  picture.dataset.show = what;
  if (what !== 'clip') video.pause();
  else play();
}

const still = () => matchMedia('(prefers-reduced-motion: reduce)').matches;

function play() {
  if (!still() && part('video').src) part('video').play().catch(() => {});
}

function tell(what, times, accelerators, notes, ready, news = []) {
  text(part('title'), what.title);
  text(part('settings'), what.settings);
  text(part('times'), times);
  text(part('accelerators'), accelerators);
  const line = (className) => (note) => Object.assign(document.createElement('li'), {textContent: note, className});
  part('notes').replaceChildren(...notes.map(line('')), ...news.map(line('ks-calm')));
  element.querySelector('.ks-code').hidden = true;
  for (const name of ['reuse', 'share']) element.querySelector(`[data-do=${name}]`).disabled = !ready;
  const link = element.querySelector('[data-do=download]');
  if (ready) { link.href = what.video; link.download = what.name; link.removeAttribute('aria-disabled'); }
  else { link.removeAttribute('href'); link.setAttribute('aria-disabled', 'true'); }
}

// What is said belongs to what is seen: the clip that is being made, which can't be had yet.
function showRunning(running) {
  size(running.width, running.height);
  show('preview');
  state.clip = null;
  tell(running, '', '', [], false);
}

const brief = (words) => words.length > 120 ? words.slice(0, 119) + '…' : words;

function showClip(clip) {
  const video = part('video');
  const other = !state.clip || state.clip.job !== clip.job;
  state.clip = clip;
  if (other) {
    size(clip.width, clip.height);
    video.poster = clip.poster;
    video.src = clip.video;
    video.setAttribute('aria-label', 'Clip: ' + brief(clip.title));
    tell(clip, clip.facts, clip.accelerators, clip.notes, true, clip.news);
    window.kinetile.seed = clip.seed;
  }
  show('clip');
  if (other) play();
  markChosen();
}

function showPreview(preview) {
  const node = part('preview');
  state.preview = [preview.job, preview.number];
  node.style.backgroundImage = `url(${preview.picture})`;
  node.style.setProperty('--ks-frames', preview.frames);
  node.dataset.number = preview.number;
  if (state.running && !state.chosen) showRunning(state.running);
}

function markChosen() {
  for (const node of part('recent').children) {
    node.setAttribute('aria-pressed', String(state.clip && part('picture').dataset.show === 'clip' && +node.dataset.job === state.clip.job));
  }
}

function showRecent(clips) {
  state.recent = clips;
  const known = new Map([...part('recent').children].map((node) => [+node.dataset.job, node]));
  part('recent').replaceChildren(...clips.map((clip) => {
    const old = known.get(clip.job);
    if (old) return old;
    const node = document.createElement('button');
    node.type = 'button'; node.dataset.do = 'show'; node.dataset.job = clip.job;
    node.title = brief(clip.title);
    node.setAttribute('aria-label', 'Show the clip: ' + node.title);
    const picture = document.createElement('img');
    picture.src = clip.poster; picture.alt = ''; picture.loading = 'lazy'; picture.width = clip.width; picture.height = clip.height;
    node.append(picture);
    return node;
  }));
}

function tellProgress(running, waiting, held) {
  const bar = part('bar'), percent = Math.round((running ? running.fraction : 0) * 100);
  bar.setAttribute('aria-valuenow', percent);
  bar.firstElementChild.style.transform = `scaleX(${running ? running.fraction : 0})`;
  const queued = [waiting ? `${waiting} waiting` : '', held ? `${held} held` : ''].filter(Boolean).join(', ');
  const words = running ? [running.text, queued].filter(Boolean).join(' · ') : queued || 'Ready. Closing this page is safe: jobs go on without it.';
  text(part('now'), words);
  part('now').classList.remove('ks-lost');
  bar.setAttribute('aria-valuetext', words);
  element.querySelector('[data-do=cancel]').disabled = !running || running.stopping;
  if (running && Date.now() - state.spoke > 5000) { state.spoke = Date.now(); text(part('said'), words); }
  document.title = running ? `${percent} % · Kinetile` : 'Kinetile';
  const tab = document.getElementById('tab-queue-button');
  if (tab) { const count = waiting + (running ? 1 : 0); if (count || held) tab.dataset.count = count || `${held} held`; else delete tab.dataset.count; }
}

// GPUs together: offered where there are several, or where another number was brought along.
function offerGpus(count) {
  const field = document.querySelector('.kt-gpus');
  if (!field) return;
  const asked = (field.querySelector('input') || {value: ''}).value;
  field.classList.toggle('kt-offered', count > 1 || !['', '1'].includes(asked));
}

function take(news) {
  if (news.error) { noAnswer(news.error); return; }
  const before = state.running;
  state.running = news.running;
  if (news.running && (!before || before.job !== news.running.job)) {
    trouble('');
    if (!state.chosen) { part('preview').style.backgroundImage = 'none'; showRunning(news.running); }
  }
  if (news.running && news.running.text.startsWith('starting')) part('picture').classList.add('ks-waiting'); else part('picture').classList.remove('ks-waiting');
  if (news.preview) showPreview(news.preview);
  if (news.recent) {
    showRecent(news.recent);
    takeEnd(news.ended);
    if (state.revision && news.revision !== state.revision) trigger('change', {revision: news.revision});
  }
  state.revision = news.revision;
  if (!news.running && !state.chosen) {
    if (state.recent.length) showClip(state.recent[0]); else { show('empty'); tell({title: '', settings: ''}, '', '', [], false); }
  }
  const machine = document.getElementById('kt-header-machine');
  if (machine && news.machine) text(machine, news.machine);
  offerGpus(news.gpus);
  tellProgress(news.running, news.waiting, news.held || 0);
  markChosen();
  nameSeed();
  if (news.running && Date.now() - state.pressed < 5000) { state.pressed = 0; comeIntoView(); }
}

// On a narrow screen the stage is not beside the button that was pressed.
function comeIntoView() {
  if (!matchMedia('(max-width: 900px)').matches) return;
  element.scrollIntoView({behavior: still() ? 'auto' : 'smooth', block: 'start'});
}

function nameSeed() {
  const reuse = document.querySelector('.kt-seeds input[value=Reuse]'), seed = window.kinetile.seed;
  if (reuse) reuse.closest('label').title = 'Takes the seed of the clip that was shown last' + (seed ? `: ${seed}` : '; there is none yet');
}

function takeEnd(ended) {
  if (!ended || ended.job === state.ended) return;
  const first = state.revision === '';
  state.ended = ended.job;
  if (first) return;
  text(part('said'), `${ended.title}: ${ended.state}`);
  const fate = {cancelled: 'was cancelled; nothing was saved.', failed: `failed: ${ended.why}`, crashed: `failed: ${ended.why}`};
  if (!fate[ended.state]) return;
  // On the stage stands another clip then: what is said names the one that it speaks of.
  const other = state.recent.length && !state.running ? ' Shown is a clip that was made before.' : '';
  trouble(`“${ended.title}” ${fate[ended.state]}${other}`, ended.state === 'cancelled');
}

async function poll() {
  if (asking) { again = true; return; }
  asking = true; clearTimeout(timer);
  try {
    take(await server.poll({revision: state.revision, preview: state.preview}));
  } catch (error) {
    noAnswer('No answer from Kinetile. If it was stopped, start it again: the queue is kept.');
  }
  asking = false;
  const wait = again ? 0 : document.hidden ? every.hidden : state.running ? every.running : every.idle;
  again = false;
  timer = setTimeout(poll, wait);
}

const actions = {
  show(node) {
    const clip = state.recent.find((one) => one.job === +node.dataset.job);
    if (!clip) return;
    state.chosen = clip.job === (state.recent[0] || {}).job && !state.running ? 0 : clip.job;
    trouble('');
    showClip(clip);
  },
  async cancel() {
    if (!state.running) return;
    const job = state.running.job;
    element.querySelector('[data-do=cancel]').disabled = true;
    const answer = await server.cancel({job});
    if (answer.error) trouble(answer.error);
    poll();
  },
  reuse() {
    if (!state.clip) return;
    trigger('select', {job: state.clip.job});
    window.kinetile.toForm();
  },
  async share() {
    if (!state.clip) return;
    const answer = await server.share({job: state.clip.job}), field = element.querySelector('.ks-code textarea');
    field.value = answer.code || answer.error;
    element.querySelector('.ks-code').hidden = false;
    field.focus(); field.select();
    if (answer.code && navigator.clipboard) {
      navigator.clipboard.writeText(answer.code).then(() => text(part('said'), 'Share code copied'), () => {});
    }
  },
};

element.addEventListener('click', (event) => {
  const node = event.target.closest('[data-do]');
  if (node && actions[node.dataset.do]) actions[node.dataset.do](node);
});
document.addEventListener('visibilitychange', () => { if (!document.hidden) poll(); });

window.kinetile = Object.assign(window.kinetile || {}, {
  poll,
  cancel: actions.cancel,
  running: () => !!state.running,
  follow(notice) { state.chosen = 0; if (!(notice || '').includes('role="alert"')) state.pressed = Date.now(); trouble(''); poll(); },
});
poll();

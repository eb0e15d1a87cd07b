// A measurement's bar moves by itself while it can be seen; its beginning and end come with a change of the page.
let asking = false;
setInterval(async () => {
  const line = element.querySelector('.kt-measuring');
  if (!line || asking || document.hidden || element.offsetParent === null) return;
  asking = true;
  try {
    const now = await server.progress();
    if (now.over || String(now.number) !== line.dataset.number) trigger('apply', {});
    else {
      line.querySelector('.kt-state').textContent = now.words;
      line.querySelector('.kt-bar').setAttribute('aria-valuenow', now.percent);
      line.querySelector('.kt-bar i').style.width = now.percent + '%';
    }
  } catch (error) { /* the server is away; the next tick asks again */ }
  asking = false;
}, 700);

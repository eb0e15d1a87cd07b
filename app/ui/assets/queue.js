// The running job's line moves by itself while it can be seen; everything else waits for a change of the queue.
let asked = false;
setInterval(async () => {
  const row = element.querySelector('.kt-running');
  if (!row || asked || document.hidden || element.offsetParent === null) return;
  asked = true;
  try {
    const now = await server.running();
    if (String(now.job) === row.dataset.job && row.isConnected) {
      row.querySelector('.kt-state').textContent = now.words;
      row.querySelector('.kt-bar').setAttribute('aria-valuenow', now.percent);
      row.querySelector('.kt-bar i').style.width = now.percent + '%';
    }
  } catch (error) { /* the server is away; the next tick asks again */ }
  asked = false;
}, 700);

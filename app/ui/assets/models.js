// How a fetch ended is told in its own row: where that row can be seen, so can what it grew by.
let told = '';
watch('value', () => {
  const ended = element.querySelector('.kt-ended'), now = ended ? ended.textContent : '';
  if (now && now !== told) {
    const top = ended.closest('li').getBoundingClientRect().top;
    if (top >= 0 && top < innerHeight) ended.scrollIntoView({block: 'nearest'});
  }
  told = now;
});

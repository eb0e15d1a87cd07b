// On a narrow page the chosen clip or preset stands above its list: bring it into view when another one was chosen.
let chosen = '';
watch('value', () => {
  const article = element.querySelector('article');
  const now = article ? article.dataset.key : '';
  if (now && now !== chosen && element.getBoundingClientRect().top < 0) {
    element.scrollIntoView({ block: 'start' });
  }
  chosen = now;
});

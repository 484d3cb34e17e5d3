/* Browsers let no page on disk fetch another, from which search takes its
   excerpts. There, and only there, they come from a script with all pages. */
if (
  window.location.protocol === "file:" &&
  document.documentElement.dataset.content_root !== undefined &&
  /search\.html$/.test(window.location.pathname)
) {
  document.write('<script src="_static/pages.js"><\/script>');
  window.fetch = async (address) => ({
    text: async () =>
      PAGES[address.replace(/^\.\//, "").replace(/\.html$/, "")] || "",
  });
}

// `rlpto serve` prints a link that ends in #TOKEN: what stands behind # is sent to no server.
"use strict";
(() => {
  const token = location.hash.slice(1);
  if (!token) return;
  history.replaceState(null, "", location.pathname + location.search);
  const form = document.getElementById("login");
  form.elements.token.value = token;
  form.requestSubmit();
})();

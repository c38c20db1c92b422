// The operations of a group, or all, as Swagger UI shows them. It asks with the token that the page at / has kept.
const { group } = document.getElementById("api").dataset;
const spec = await (await fetch("/openapi.json")).json();
if (group) {
  spec.info.description = "";
  spec.tags = spec.tags.filter((tag) => tag.name === group);
  for (const operations of Object.values(spec.paths)) {
    for (const [method, { tags }] of Object.entries(operations)) {
      if (!tags?.includes(group)) delete operations[method];
    }
  }
}
SwaggerUIBundle({
  spec,
  dom_id: "#api",
  deepLinking: true, // the index leads to an operation
  defaultModelsExpandDepth: -1,
  supportedSubmitMethods: ["get", "post"], // so that a try deletes nothing
  requestInterceptor(request) {
    const token = sessionStorage.getItem("tallyroll-token");
    if (token) request.headers.Authorization ??= `Bearer ${token}`;
    return request;
  },
});

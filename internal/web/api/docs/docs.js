// The document, as Swagger UI shows it. It asks with the token that the page at / has kept.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#api",
  defaultModelsExpandDepth: -1,
  supportedSubmitMethods: ["get", "post"], // so that a try deletes nothing
  requestInterceptor(request) {
    const token = sessionStorage.getItem("tallyroll-token");
    if (token) request.headers.Authorization ??= `Bearer ${token}`;
    return request;
  },
});

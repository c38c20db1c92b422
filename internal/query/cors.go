package query

import "tallyroll/internal/web"

// cors is what browsers are told about calls from the pages of these origins.
func cors(origins web.Origins) web.CORS {
	return web.CORS{
		Origins: origins,
		Methods: "GET, HEAD, POST, DELETE",
		Headers: "Authorization, Content-Type, If-None-Match, Last-Event-ID",
		Expose:  "ETag, RateLimit, RateLimit-Policy, Retry-After",
	}
}

// The program asks every operation of the API through the generated client, and compares what the client
// made of each answer with the bytes that came. It prints the operation of each question that went well.
//
//	asks URL TOKEN
//
// The test copies it into a module beside the client. It knows the counters and limits of that test.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"clients/client"
)

type token string

func (t token) Bearer(context.Context, client.OperationName) (client.Bearer, error) {
	return client.Bearer{Token: string(t)}, nil
}

// question is what one operation is asked, and the status that must come.
type question struct {
	operation string
	status    int
	ask       func(context.Context, *client.Client) (any, error)
}

// of makes a question of a method that takes a value.
func of[V, R any](operation string, status int, method func(*client.Client, context.Context, V) (R, error), value V) question {
	return question{operation, status, func(ctx context.Context, c *client.Client) (any, error) { return method(c, ctx, value) }}
}

// with makes a question of a method that takes a body and parameters.
func with[B, P, R any](operation string, status int, method func(*client.Client, context.Context, B, P) (R, error), body B, params P) question {
	return question{operation, status, func(ctx context.Context, c *client.Client) (any, error) { return method(c, ctx, body, params) }}
}

// plain makes a question of a method that takes nothing.
func plain[R any](operation string, method func(*client.Client, context.Context) (R, error)) question {
	return question{operation, http.StatusOK, func(ctx context.Context, c *client.Client) (any, error) { return method(c, ctx) }}
}

var (
	text   = client.NewOptString
	number = client.NewOptInt
)

func questions(now time.Time) []question {
	hourAgo := now.Add(-time.Hour)
	both := []string{"checkout", "/cart"}
	return []question{
		of("get-total", 200, (*client.Client).GetTotal, client.GetTotalParams{Key: both, Window: []string{"1h", "24h"}}),
		of("get-total", 200, (*client.Client).GetTotal, client.GetTotalParams{
			Key: both, Window: []string{"1h"}, At: client.NewOptString(strconv.FormatInt(now.UnixMilli(), 10)),
		}),
		of("get-total", 200, (*client.Client).GetTotal, client.GetTotalParams{
			Key: both, From: client.NewOptString(hourAgo.Format(time.RFC3339)),
		}),
		of("get-total", 200, (*client.Client).GetTotal, client.GetTotalParams{
			Key: both, Window: []string{"today", "week"}, Tz: text("Europe/Berlin"),
		}),
		of("get-total", 200, (*client.Client).GetTotal, client.GetTotalParams{Window: []string{"1h"}, Prefix: text("c"), Group: number(1)}),
		of("get-total", 400, (*client.Client).GetTotal, client.GetTotalParams{Key: both, Window: []string{"24"}}),
		of("post-total", 200, (*client.Client).PostTotal, &client.TotalBody{Keys: both, Windows: []string{"1h"}}),
		of("post-total", 200, (*client.Client).PostTotal, &client.TotalBody{Prefix: text("c"), Group: number(1), Windows: []string{"1h"}}),
		of("post-total", 400, (*client.Client).PostTotal, &client.TotalBody{Keys: []string{""}, Windows: []string{"1h"}}),
		of("get-uniques", 200, (*client.Client).GetUniques, client.GetUniquesParams{Key: both, Window: []string{"1h", "24h"}}),
		of("get-uniques", 400, (*client.Client).GetUniques, client.GetUniquesParams{Key: both, Window: []string{"24"}}),
		of("post-uniques", 200, (*client.Client).PostUniques, &client.UniquesBody{Keys: both, Windows: []string{"1h"}}),
		of("get-series", 200, (*client.Client).GetSeries, client.GetSeriesParams{Key: both[:1], Step: text("5m")}),
		of("get-series", 200, (*client.Client).GetSeries, client.GetSeriesParams{
			Key: both, From: client.NewOptString("-1h"),
		}),
		of("get-series", 200, (*client.Client).GetSeries, client.GetSeriesParams{Key: both, Format: text("csv")}),
		of("get-series", 400, (*client.Client).GetSeries, client.GetSeriesParams{Key: both, Step: text("0m")}),
		of("get-top", 200, (*client.Client).GetTop, client.GetTopParams{Window: "1h", Limit: number(3)}),
		of("get-top", 400, (*client.Client).GetTop, client.GetTopParams{Window: "1h", Limit: number(-1)}),
		of("get-counters", 200, (*client.Client).GetCounters, client.GetCountersParams{Limit: number(2)}), // with next
		of("get-counters", 200, (*client.Client).GetCounters, client.GetCountersParams{Prefix: text("nobody")}),
		of("get-counters", 400, (*client.Client).GetCounters, client.GetCountersParams{Limit: number(-1)}),
		of("delete-counters", 200, (*client.Client).DeleteCounters, client.DeleteCountersParams{Key: text("nobody")}),
		of("delete-counters", 400, (*client.Client).DeleteCounters, client.DeleteCountersParams{}),
		of("get-limits", 200, (*client.Client).GetLimits, client.GetLimitsParams{}),
		plain("get-about", (*client.Client).GetAbout),
		of("get-export", 200, (*client.Client).GetExport, client.GetExportParams{Step: text("1h")}),
		of("get-export", 200, (*client.Client).GetExport, client.GetExportParams{Format: text("ndjson")}),
		of("get-export", 400, (*client.Client).GetExport, client.GetExportParams{Step: text("7m")}),
		of("get-live", 200, (*client.Client).GetLive, client.GetLiveParams{Key: both, Window: []string{"1h"}}),
		of("get-live", 400, (*client.Client).GetLive, client.GetLiveParams{Key: both, Window: []string{"0h"}}),
		with("post-take", 200, (*client.Client).PostTake, &client.TakeBody{Limit: text("exports"), Key: text("alice"), Lease: text("export-17")}, client.PostTakeParams{}),
		of("post-renew", 200, (*client.Client).PostRenew, &client.PlaceBody{Limit: text("exports"), Key: text("alice"), Lease: text("export-17")}),
		of("post-release", 200, (*client.Client).PostRelease, &client.PlaceBody{Limit: text("exports"), Key: text("alice"), Lease: text("export-17")}),
		of("post-renew", 409, (*client.Client).PostRenew, &client.PlaceBody{Limit: text("exports"), Key: text("alice"), Lease: text("export-17")}),
		with("post-take", 200, (*client.Client).PostTake, &client.TakeBody{Limit: text("tokens"), Key: text("alice"), N: number(70), ID: text("req-17"), TTL: text("1h")}, client.PostTakeParams{}),
		of("post-settle", 200, (*client.Client).PostSettle, &client.SettleBody{Limit: text("tokens"), Key: text("alice"), N: number(31), ID: text("req-17")}),
		of("post-settle", 422, (*client.Client).PostSettle, &client.SettleBody{Limit: text("exports"), Key: text("alice"), N: number(1), ID: text("req-17")}),
		with("post-return", 200, (*client.Client).PostReturn, &client.ReturnBody{Limit: text("tokens"), Key: text("alice"), N: number(1)}, client.PostReturnParams{}),
		of("post-settle", 404, (*client.Client).PostSettle, &client.SettleBody{Limit: text("tokens"), Key: text("alice"), N: number(1), ID: text("another")}),
		of("get-watch", 200, (*client.Client).GetWatch, client.GetWatchParams{}),
		of("get-watch", 400, (*client.Client).GetWatch, client.GetWatchParams{Limit: number(0)}),
		plain("get-streams", (*client.Client).GetStreams),
		of("get-rejects", 200, (*client.Client).GetRejects, client.GetRejectsParams{}),
		of("get-rejects", 400, (*client.Client).GetRejects, client.GetRejectsParams{Limit: number(1000)}),
		of("get-probe", 200, (*client.Client).GetProbe, client.GetProbeParams{Key: both, Window: []string{"1h"}}),
		of("get-probe", 400, (*client.Client).GetProbe, client.GetProbeParams{Key: both, Top: number(3), Window: []string{"1h"}}),
		with("post-take", 200, (*client.Client).PostTake, &client.TakeBody{Limit: text("login"), Key: text("alice")}, client.PostTakeParams{}),
		with("post-take", 200, (*client.Client).PostTake, &client.TakeBody{Take: []client.TakeItem{
			{Limit: text("login"), Key: text("bob")}, {Window: text("1h"), Max: number(10), Key: text("bob"), N: number(3)},
		}}, client.PostTakeParams{IdempotencyKey: text("req-1")}),
		with("post-return", 200, (*client.Client).PostReturn, &client.ReturnBody{Limit: text("login"), Key: text("bob")}, client.PostReturnParams{}),
		with("post-take", 429, (*client.Client).PostTake, &client.TakeBody{Limit: text("login"), Key: text("alice"), N: number(2)}, client.PostTakeParams{}),
		with("post-take", 400, (*client.Client).PostTake, &client.TakeBody{Limit: text("nobody"), Key: text("alice")}, client.PostTakeParams{}),
		of("get-limit", 200, (*client.Client).GetLimit, client.GetLimitParams{Limit: text("login"), Key: text("alice")}),
		of("get-limit", 200, (*client.Client).GetLimit, client.GetLimitParams{Key: text("checkout"), Window: text("1h"), Max: number(5)}),
		of("get-limit", 400, (*client.Client).GetLimit, client.GetLimitParams{Key: text("alice")}),
		of("delete-limit", 204, (*client.Client).DeleteLimit, client.DeleteLimitParams{Limit: text("login"), Key: text("alice")}),
		of("delete-limit", 400, (*client.Client).DeleteLimit, client.DeleteLimitParams{Limit: text("login")}),
		of("get-authz", 200, (*client.Client).GetAuthz, client.GetAuthzParams{Limit: []string{"once"}, KeyHeader: text("User-Agent")}),
		of("get-authz", 429, (*client.Client).GetAuthz, client.GetAuthzParams{Limit: []string{"once"}, KeyHeader: text("User-Agent")}),
		of("get-authz", 400, (*client.Client).GetAuthz, client.GetAuthzParams{Limit: []string{"once"}}),
		of("get-authz-path", 200, (*client.Client).GetAuthzPath, client.GetAuthzPathParams{Limit: "route"}),
		of("get-authz-path", 429, (*client.Client).GetAuthzPath, client.GetAuthzPathParams{Limit: "route"}),
		of("post-authz", 200, (*client.Client).PostAuthz, client.PostAuthzParams{Limit: []string{"tokens"}, KeyHeader: text("User-Agent")}),
		of("post-authz-path", 200, (*client.Client).PostAuthzPath, client.PostAuthzPathParams{Limit: "route"}),
		of("put-authz", 200, (*client.Client).PutAuthz, client.PutAuthzParams{Limit: []string{"tokens"}, KeyHeader: text("User-Agent")}),
		of("put-authz-path", 200, (*client.Client).PutAuthzPath, client.PutAuthzPathParams{Limit: "route"}),
		of("patch-authz", 200, (*client.Client).PatchAuthz, client.PatchAuthzParams{Limit: []string{"tokens"}, KeyHeader: text("User-Agent")}),
		of("patch-authz-path", 200, (*client.Client).PatchAuthzPath, client.PatchAuthzPathParams{Limit: "route"}),
		of("delete-authz", 200, (*client.Client).DeleteAuthz, client.DeleteAuthzParams{Limit: []string{"tokens"}, KeyHeader: text("User-Agent")}),
		of("delete-authz-path", 200, (*client.Client).DeleteAuthzPath, client.DeleteAuthzPathParams{Limit: "route"}),
		of("options-authz", 200, (*client.Client).OptionsAuthz, client.OptionsAuthzParams{Limit: []string{"tokens"}, KeyHeader: text("User-Agent")}),
		of("options-authz-path", 200, (*client.Client).OptionsAuthzPath, client.OptionsAuthzPathParams{Limit: "route"}),
		plain("get-health", (*client.Client).GetHealth),
		plain("get-ready", (*client.Client).GetReady),
		plain("get-ready-answers", (*client.Client).GetReadyAnswers),
		plain("get-ready-takes", (*client.Client).GetReadyTakes),
		plain("get-metrics", (*client.Client).GetMetrics),
	}
}

func main() {
	log.SetFlags(0)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r := &recorder{}
	c, err := client.NewClient(os.Args[1], token(os.Args[2]), client.WithClient(&http.Client{Transport: r}))
	if err != nil {
		log.Fatal(err)
	}
	bad := 0
	for i, q := range questions(time.Now()) {
		answer, err := q.ask(ctx, c)
		if err == nil {
			err = r.compare(q.status, answer)
		}
		if err != nil {
			log.Printf("question %d, %s: %v\nit was answered with %d %s", i+1, q.operation, err, r.status, r.body)
			bad++
			continue
		}
		fmt.Println(q.operation, q.status)
	}
	if bad > 0 {
		log.Fatalf("%d answers are wrong", bad)
	}

	// What a program does with an answer: it asks for its type.
	answer, err := c.GetTotal(ctx, client.GetTotalParams{Key: []string{"checkout"}, Window: []string{"1h"}})
	total, ok := answer.(*client.TotalAnswerHeaders)
	if err != nil || !ok || len(total.Response.Totals) != 1 || total.Response.Totals[0].Total != 7 {
		log.Fatalf("the total of checkout: %+v %v", answer, err)
	}
	stranger, err := client.NewClient(os.Args[1], token("wrong"))
	if err != nil {
		log.Fatal(err)
	}
	answer, err = stranger.GetTotal(ctx, client.GetTotalParams{Key: []string{"checkout"}, Window: []string{"1h"}})
	refused, ok := answer.(*client.ProblemHeaders)
	if err != nil || !ok || !strings.Contains(refused.Response.Detail, "QUERY_TOKENS") {
		log.Fatalf("with a wrong token: %T %+v %v", answer, answer, err)
	}
}

// Reader prints how many hits counters had in the last hour.
//
//	go run ./examples/go/reader checkout /cart
//
// QUERY_URL says where query is; QUERY_TOKEN is one of its QUERY_TOKENS, if it has any.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
	"time"
)

// answer has the fields of /v1/total that are needed here, and detail of a problem.
type answer struct {
	Detail string
	AsOf   time.Time `json:"as_of"`
	Totals []struct {
		Key          string
		Total, Lower int64
		Upper        *int64 // nil if nobody has counted lately
		Complete     bool
	}
}

func main() {
	params := url.Values{"key": os.Args[1:], "window": {"1h"}} // key may repeat
	address := cmp.Or(os.Getenv("QUERY_URL"), "http://127.0.0.1:8080") + "/v1/total?" + params.Encode()
	request, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		log.Fatal(err)
	}
	token := os.Getenv("QUERY_TOKEN")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	var a answer
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		log.Fatalf("%s: %v", response.Status, err)
	}
	if response.StatusCode != http.StatusOK {
		log.Fatalf("%s: %s", response.Status, a.Detail) // 503: ask again after the seconds in Retry-After
	}
	for _, t := range a.Totals {
		if t.Upper == nil {
			fmt.Printf("%s %d (at least %d)\n", t.Key, t.Total, t.Lower)
			continue
		}
		fmt.Printf("%s %d (between %d and %d)\n", t.Key, t.Total, t.Lower, *t.Upper)
	}
	log.Printf("every hit stored before %v is counted", a.AsOf)
}

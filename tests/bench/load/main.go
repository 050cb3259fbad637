// The load on other servers, beside that on Stateward, which `agent load` of examples/go makes. Both do the same work for a
// call: package load of examples/go.
package main

import (
	"context"
	"fmt"
	"os"

	"example.com/load"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/encoding/protowire"
)

// PostgreSQL is started with 100.
const postgresConnectionsMax = 90

var openers = map[string]load.Opener{
	"echo":       load.Grpc("/bench.Echo/Echo", load.SaveRequest),
	"etcd":       load.Grpc("/etcdserverpb.KV/Put", putRequest),
	"PostgreSQL": openPostgres,
	"Redis":      openRedis,
}

func main() {
	if err := load.Run(openers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// etcdserverpb.PutRequest: key = 1, value = 2.
func putRequest(thread string, version int, body []byte) []byte {
	request := protowire.AppendTag(make([]byte, 0, len(body)+len(thread)+32), 1, protowire.BytesType)
	request = protowire.AppendString(request, fmt.Sprintf("%s/%d", thread, version))
	return protowire.AppendBytes(protowire.AppendTag(request, 2, protowire.BytesType), body)
}

func openPostgres(ctx context.Context, work load.Job) (load.Saver, error) {
	config, err := pgxpool.ParseConfig(work.Address)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(min(work.InFlight, postgresConnectionsMax))
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	columns := "thread text, place bigint, value bytea, PRIMARY KEY (thread, place)"
	if _, err = pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS loads ("+columns+")"); err != nil {
		return nil, err
	}
	return func(ctx context.Context, _ int, thread string, version int, body []byte) error {
		_, err := pool.Exec(ctx, "INSERT INTO loads VALUES ($1, $2, $3)", thread, version, body)
		return err
	}, nil
}

func openRedis(_ context.Context, work load.Job) (load.Saver, error) {
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: work.Address, PoolSize: work.InFlight})
	return func(ctx context.Context, _ int, thread string, _ int, body []byte) error {
		return client.RPush(ctx, "load:"+thread, body).Err()
	}, nil
}

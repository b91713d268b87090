// The work that a measurement asks of each server, here for events: Vert.x with its own clients.
package bench;

import io.vertx.core.Future;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClient;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpClientResponse;
import io.vertx.core.http.HttpMethod;
import io.vertx.pgclient.PgBuilder;
import io.vertx.pgclient.PgConnectOptions;
import io.vertx.sqlclient.PoolOptions;
import io.vertx.sqlclient.SqlClient;
import java.net.URI;
import java.util.Map;

public class Events {
    private static final Map<String, String> GIVEN = System.getenv();
    private static final int STEPS = Integer.parseInt(GIVEN.get("CPU_STEPS"));
    private static final URI REMOTE = URI.create(GIVEN.get("REMOTE_URL"));
    private static final String QUERY = "SELECT pg_sleep(" + GIVEN.get("QUERY_SECONDS") + ")";
    // Its client would queue what goes beyond a few connections: a thread has no such limit.
    private static final int REMOTE_CONNECTIONS_MAX = 10_000;

    private final HttpClient client;
    private final SqlClient database;

    Events(Vertx vertx) {
        var options = new HttpClientOptions().setMaxPoolSize(REMOTE_CONNECTIONS_MAX);
        client = vertx.createHttpClient(options);
        var place = new PgConnectOptions().setHost("127.0.0.1").setDatabase("postgres")
            .setPort(Integer.parseInt(GIVEN.get("DATABASE_PORT"))).setUser("postgres");
        var pool = new PoolOptions().setMaxSize(Integer.parseInt(GIVEN.get("QUERIES_MAX")));
        database = PgBuilder.pool().with(pool).connectingTo(place).using(vertx).build();
    }

    public static void main(String[] arguments) {
        var vertx = Vertx.vertx();
        var events = new Events(vertx);
        vertx.createHttpServer()
            .requestHandler(request -> {
                var work = events.work(request.path());
                if (work == null) {
                    request.response().setStatusCode(404).end();
                    return;
                }
                work.onSuccess(request.response()::end).onFailure(error -> {
                    System.err.println(error);
                    request.response().setStatusCode(500).end();
                });
            })
            .listen(Integer.parseInt(GIVEN.get("PORT")), "127.0.0.1")
            .onFailure(error -> System.exit(1));
    }

    private Future<Buffer> work(String path) {
        return switch (path) {
            case "/short" -> Future.succeededFuture(Buffer.buffer("Hi!\n"));
            case "/query" -> database.query(QUERY).execute().map(rows -> Buffer.buffer("done\n"));
            case "/remote" -> client
                .request(HttpMethod.GET, REMOTE.getPort(), REMOTE.getHost(), "/")
                .compose(request -> request.send())
                .compose(HttpClientResponse::body);
            case "/cpu" -> Future.succeededFuture(Buffer.buffer(compute()));
            default -> null;
        };
    }

    // The same sum in each language, within 32 bits.
    private static String compute() {
        int sum = 0;
        for (int step = 0; step < STEPS; step++) sum = sum * 31 + step;
        return Integer.toUnsignedString(sum) + "\n";
    }
}

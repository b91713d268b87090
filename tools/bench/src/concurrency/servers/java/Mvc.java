// The work that a measurement asks of each server, here for threads: Spring MVC as it comes.
package bench;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Map;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;

@SpringBootApplication
@RestController
public class Mvc {
    private static final Map<String, String> GIVEN = System.getenv();
    private static final int STEPS = Integer.parseInt(GIVEN.get("CPU_STEPS"));
    private static final URI REMOTE = URI.create(GIVEN.get("REMOTE_URL"));
    private static final String QUERY = "SELECT pg_sleep(" + GIVEN.get("QUERY_SECONDS") + ")";

    private final HttpClient client = HttpClient.newHttpClient();
    private final JdbcTemplate database;

    Mvc(JdbcTemplate database) {
        this.database = database;
    }

    public static void main(String[] arguments) {
        var application = new SpringApplication(Mvc.class);
        application.setDefaultProperties(Map.of(
            "server.address", "127.0.0.1",
            "server.port", GIVEN.get("PORT"),
            "spring.datasource.url",
            "jdbc:postgresql://127.0.0.1:" + GIVEN.get("DATABASE_PORT") + "/postgres",
            "spring.datasource.username", "postgres",
            "spring.datasource.hikari.maximum-pool-size", GIVEN.get("QUERIES_MAX"),
            "spring.datasource.hikari.minimum-idle", "1"));
        application.run(arguments);
    }

    @GetMapping("/short")
    byte[] shortly() {
        return "Hi!\n".getBytes();
    }

    @GetMapping("/query")
    byte[] query() {
        database.query(QUERY, row -> {});
        return "done\n".getBytes();
    }

    @GetMapping("/remote")
    byte[] remote() throws Exception {
        var request = HttpRequest.newBuilder(REMOTE).build();
        return client.send(request, HttpResponse.BodyHandlers.ofByteArray()).body();
    }

    // The same sum in each language, within 32 bits.
    @GetMapping("/cpu")
    byte[] compute() {
        int sum = 0;
        for (int step = 0; step < STEPS; step++) sum = sum * 31 + step;
        return (Integer.toUnsignedString(sum) + "\n").getBytes();
    }
}

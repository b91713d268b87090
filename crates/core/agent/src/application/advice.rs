//! The way out of what keeps an application from becoming ready, in the words of its framework.
//! Texts alone; asked by supervision.

use super::contract::Mistake;

/// Returns what was seen, and what to do about it.
pub(super) fn advised(detail: &str, mistake: Mistake, framework: &str) -> String {
    match mistake {
        Mistake::Port => format!("{detail}: listen on $PORT{}", example(framework)),
        Mistake::Address => format!("{detail}: listen on $HOST{}", example(framework)),
        Mistake::Workers => detail.to_owned(),
    }
}

/// What is said of a first process that ended with exit status 0 while others went on.
pub(super) const BACKGROUND: &str = "went to the background: its first process ended with exit \
     status 0 while others went on; start it in the foreground (gunicorn without --daemon, nginx \
     with -g 'daemon off;', a shell's commands without '&', ...)";

/// What is said of a process that ended as if its work was done.
pub(super) const FOR_GOOD: &str = "a process of an application has to go on: what ends by itself \
     belongs into a schedule ([[cron]] in cortex.toml), a release step or `cortex run`";

/// Returns an example, by the framework's name in `recipe_core::frameworks`; empty if the name says
/// nothing about how it listens.
fn example(framework: &str) -> &'static str {
    match framework {
        "node" => ", for example app.listen(process.env.PORT, process.env.HOST)",
        "nextjs" => ", for example next start -p $PORT -H $HOST",
        "flask" => ", for example flask run --port $PORT --host $HOST",
        "fastapi" => ", for example uvicorn main:app --port $PORT --host $HOST",
        "django" => ", for example manage.py runserver $HOST:$PORT",
        "pyramid" => ", for example pserve production.ini http_port=$PORT http_host=$HOST",
        "python" => ", for example int(os.environ[\"PORT\"])",
        "rails" => ", for example bin/rails server -p $PORT -b $HOST",
        "rack" => ", for example rackup -p $PORT -o $HOST",
        "go" => ", for example http.ListenAndServe(\":\"+os.Getenv(\"PORT\"), nil)",
        "java" => ", for example java -Dserver.port=$PORT -Dserver.address=$HOST -jar app.jar",
        "rust" => ", for example std::env::var(\"PORT\")",
        "phoenix" => ", for example port: System.get_env(\"PORT\") in config/runtime.exs",
        _ => ": the port is in the variable PORT, the address in HOST",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_followed_by_the_way_out() {
        let detail = "listens on 127.0.0.1:3000, but PORT is 20001";
        let said = advised(detail, Mistake::Port, "node");
        assert_eq!(
            said,
            "listens on 127.0.0.1:3000, but PORT is 20001: listen on $PORT, for example \
             app.listen(process.env.PORT, process.env.HOST)"
        );
        assert!(advised(detail, Mistake::Port, "other").contains("the variable PORT"));
        assert_eq!(advised(detail, Mistake::Workers, "node"), detail);
    }
}

//! The bus of applications under the libraries that need one, unmodified, each in an application
//! with an instance on each of two nodes: Socket.IO's adapter, the pubsub layer of Django Channels,
//! and what Laravel's broadcasts send, by both clients that it has.

use std::process::Command;

use tempfile::TempDir;

use crate::fixtures::cluster::cluster;
use crate::node::{Node, run};
use crate::outside::Site;
use crate::project::{of_files, tool};
use crate::wait::{STATE_DEADLINE, wait_for};

const PYTHON: &str = "/usr/bin/python3";

/// Pushes an application and waits for an instance of this process type on each node.
fn on_both(nodes: &[Node; 2], name: &str, process: &str, files: &[(&str, &str)]) -> Site {
    let [one, _] = nodes;
    let project = one.path(name);
    of_files(&project, files);
    let site = one.push(&project, name);
    one.cortex(&["scale", &format!("{process}=2"), "-a", name]);
    let rows = one.await_ready(name, process, 2);
    assert_ne!(rows[0].node, rows[1].node, "{rows:#?}");
    site
}

/// Runs a client outside with the application's name and the addresses of both nodes' routers; it
/// must say that all that it checked was right.
fn all_well(nodes: &[Node; 2], name: &str, mut client: Command) {
    client.arg(format!("{name}.localhost"));
    client.args(nodes.each_ref().map(|node| format!("127.0.0.1:{}", node.http_port)));
    let outcome = run(client, "a client of both nodes").succeeded();
    assert_eq!(outcome.stdout.trim_end(), "all well", "{}", outcome.stderr);
}

fn settings(command: &str) -> String {
    format!("bus = \"REDIS_URL\"\n[processes]\nweb = '{command}'\n")
}

#[test]
fn the_adapter_of_socket_io_joins_the_servers_of_two_nodes() {
    // It outlives the nodes, whose instances use what is in it.
    let tools = TempDir::with_prefix("cortex-e2e-").expect("a directory of the test's own");
    let tools = tools.path();
    let nodes = cluster([&[], &[]]);
    let package = r#"{ "private": true, "dependencies": {
        "@socket.io/redis-adapter": "^8", "ioredis": "^6", "redis": "^6",
        "socket.io": "^4", "socket.io-client": "^4" } }"#;
    let client = include_str!("fixtures/bus/socket_io/client.js");
    of_files(tools, &[("package.json", package), ("client.js", client)]);
    tool(tools, "npm", &["install", "--no-audit", "--no-fund"]);
    let packages = tools.join("node_modules");
    let settings = settings(&format!("NODE_PATH={} node server.js", packages.display()));
    let server = include_str!("fixtures/bus/socket_io/server.js");
    on_both(&nodes, "chat", "web", &[("server.js", server), ("cortex.toml", &settings)]);
    let mut node = Command::new("node");
    node.arg("client.js").current_dir(tools);
    all_well(&nodes, "chat", node);
}

#[test]
fn the_pubsub_layer_of_django_channels_joins_the_rooms_of_two_nodes() {
    // It outlives the nodes, whose instances use what is in it.
    let tools = TempDir::with_prefix("cortex-e2e-").expect("a directory of the test's own");
    let tools = tools.path();
    let nodes = cluster([&[], &[]]);
    let client = include_str!("fixtures/bus/channels/client.py");
    of_files(tools, &[("client.py", client)]);
    let install = ["-m", "pip", "install", "--quiet", "--no-compile", "--target", "packages"];
    let packages = ["channels", "channels_redis", "uvicorn", "websockets"];
    tool(tools, PYTHON, &[&install[..], &packages].concat());
    let packages = tools.join("packages");
    let settings = settings(&format!("PYTHONPATH={} {PYTHON} app.py", packages.display()));
    let app = include_str!("fixtures/bus/channels/app.py");
    on_both(&nodes, "rooms", "web", &[("app.py", app), ("cortex.toml", &settings)]);
    let mut client = Command::new(PYTHON);
    client.arg("client.py").env("PYTHONPATH", packages).current_dir(tools);
    all_well(&nodes, "rooms", client);
}

#[test]
fn broadcasts_as_laravel_sends_them_are_heard_on_two_nodes() {
    let nodes = cluster([&[], &[]]);
    let settings = settings("php -S $HOST:$PORT web.php") + "listener = 'php listen.php'\n";
    let files = [
        ("support.php", include_str!("fixtures/bus/laravel/support.php")),
        ("web.php", include_str!("fixtures/bus/laravel/web.php")),
        ("listen.php", include_str!("fixtures/bus/laravel/listen.php")),
        ("cortex.toml", &settings),
    ];
    let shop = on_both(&nodes, "shop", "listener", &files);
    let mut wanted = Vec::new();
    for row in nodes[0].await_ready("shop", "listener", 2) {
        for client in ["phpredis", "predis"] {
            for channel in ["orders", "private-orders.1"] {
                wanted.push(format!("{client} {channel} {}", row.node));
            }
        }
    }
    wanted.sort();
    // What is sent before a listener has subscribed is missed by it.
    wait_for("all to be heard on both nodes", STATE_DEADLINE, || {
        shop.try_get("/broadcast")?;
        let heard = shop.try_get("/heard")?.body;
        if heard.lines().eq(wanted.iter()) { Ok(()) } else { Err(heard) }
    });
}

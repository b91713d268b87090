//! Writes a plan for nginx, from 1.18 on: part of its `http { … }`.

use std::fmt::Write;
use std::net::SocketAddr;

use super::plan::{Planned, PlannedServer, RoutingPlan};

/// Connections that each worker keeps for the next request.
const KEPT: u32 = 16;
/// The time limit of an answer in seconds, as in the router itself: until it begins, and between
/// two pieces of it.
const ANSWER_SECONDS: u32 = 300;

pub fn write(plan: &RoutingPlan, listen: SocketAddr) -> String {
    let mut out = String::new();
    // Writing to memory cannot fail.
    let _ = write_to(&mut out, plan, listen);
    out
}

fn write_to(out: &mut String, plan: &RoutingPlan, listen: SocketAddr) -> std::fmt::Result {
    writeln!(out, "# Written by `cortex router export`: what is changed here is lost.")?;
    writeln!(out, "map $http_upgrade $cortex_connection {{ default upgrade; '' ''; }}")?;
    if let Some(router) = plan.router {
        writeln!(out, "upstream cortex_router {{ server {router}; keepalive {KEPT}; }}")?;
    }
    for application in &plan.applications {
        upstream(out, application, plan.router)?;
    }
    writeln!(out, "server {{\n    listen {listen} default_server;\n    server_name _;")?;
    match plan.router {
        Some(_) => location(out, "/", "cortex_router")?,
        None => writeln!(out, "    return 404;")?,
    }
    writeln!(out, "}}")?;
    for application in &plan.applications {
        let Planned { name, hosts, files, .. } = application;
        writeln!(out, "server {{\n    listen {listen};\n    server_name {};", hosts.join(" "))?;
        location(out, "/", &format!("cortex_app_{name}"))?;
        for path in files.iter().filter(|_| plan.router.is_some()) {
            location(out, &format!("^~ {path}"), "cortex_router")?;
        }
        writeln!(out, "}}")?;
    }
    Ok(())
}

fn upstream(out: &mut String, planned: &Planned, router: Option<SocketAddr>) -> std::fmt::Result {
    writeln!(out, "upstream cortex_app_{} {{", planned.name)?;
    // The zone is shared by all workers, so that a limit counts for all of them together.
    writeln!(out, "    zone cortex_app_{} 64k;\n    least_conn;", planned.name)?;
    for PlannedServer { address, concurrency, .. } in &planned.servers {
        let limit = concurrency.map(|limit| format!(" max_conns={limit}")).unwrap_or_default();
        writeln!(out, "    server {address}{limit};")?;
    }
    if let Some(router) = router {
        writeln!(out, "    server {router} backup;")?;
    }
    // A connection that is kept would be the only one that a serial instance can have.
    if planned.servers.iter().all(|server| server.concurrency.is_none()) {
        writeln!(out, "    keepalive {KEPT};")?;
    }
    writeln!(out, "}}")
}

fn location(out: &mut String, path: &str, upstream: &str) -> std::fmt::Result {
    writeln!(out, "    location {path} {{\n        proxy_pass http://{upstream};")?;
    for line in [
        "proxy_http_version 1.1",
        "proxy_set_header Host $http_host",
        "proxy_set_header Connection $cortex_connection",
        "proxy_set_header Upgrade $http_upgrade",
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for",
        "proxy_set_header X-Forwarded-Proto $scheme",
        "proxy_set_header X-Forwarded-Host $http_host",
        "proxy_set_header X-Request-Id $request_id",
        "proxy_buffering off",
        "client_max_body_size 0",
    ] {
        writeln!(out, "        {line};")?;
    }
    writeln!(out, "        proxy_read_timeout {ANSWER_SECONDS}s;\n    }}")
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::{node, route};
    use super::*;

    #[test]
    fn each_application_has_its_servers_and_the_router_behind_them() {
        let routes = [route("shop", &[5, 6], &[], &["/static"])];
        let plan = RoutingPlan::make(&routes, &[node("a", true, "127.0.0.1:8080")]);
        let text = write(&plan, "0.0.0.0:80".parse().unwrap());
        for needle in [
            "upstream cortex_app_shop {",
            "    server 127.0.0.1:5 max_conns=1;\n    server 127.0.0.1:6 max_conns=1;\n",
            "    server 127.0.0.1:8080 backup;\n}",
            "    server_name shop.localhost www.example;",
            "    location ^~ /static {\n        proxy_pass http://cortex_router;",
            "    listen 0.0.0.0:80 default_server;",
        ] {
            assert!(text.contains(needle), "{needle}:\n{text}");
        }
        let nothing = write(&RoutingPlan::default(), "[::]:80".parse().unwrap());
        assert!(
            nothing.contains("listen [::]:80 default_server;") && nothing.contains("return 404;")
        );
    }
}

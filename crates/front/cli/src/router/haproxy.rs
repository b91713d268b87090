//! Writes a plan for HAProxy, from 2.4 on: a file of its own, given with another -f.

use std::fmt::Write;
use std::net::SocketAddr;

use super::plan::{Planned, PlannedServer, RoutingPlan};

pub fn write(plan: &RoutingPlan, listen: SocketAddr) -> String {
    let mut out = String::new();
    // Writing to memory cannot fail.
    let _ = write_to(&mut out, plan, listen);
    out
}

/// The defaults, whose time limits are those of the router itself.
const DEFAULTS: &str = "\
defaults cortex
    mode http
    timeout connect 5s
    timeout client 75s
    timeout http-request 20s
    timeout queue 30s
    timeout server 300s
    timeout tunnel 1h
    option redispatch 1
    option idle-close-on-response
    option forwardfor
    retries 3
    retry-on conn-failure empty-response
    default-server check inter 1s fall 1 rise 1 observe layer4 error-limit 1 on-error mark-down
";

fn write_to(out: &mut String, plan: &RoutingPlan, listen: SocketAddr) -> std::fmt::Result {
    writeln!(out, "# Written by `cortex router export`: what is changed here is lost.")?;
    write!(out, "{DEFAULTS}")?;
    // A request that may have been carried out already is not repeated.
    let unrepeated = "    http-request disable-l7-retry if !METH_GET";
    writeln!(out, "frontend cortex from cortex\n    bind {listen}\n{unrepeated}")?;
    writeln!(out, "    http-request set-header X-Forwarded-Proto http if !{{ ssl_fc }}")?;
    for Planned { name, hosts, files, .. } in &plan.applications {
        let host = format!("{{ req.hdr(host),host_only,lower -m str {} }}", hosts.join(" "));
        for path in files.iter().filter(|_| plan.router.is_some()) {
            writeln!(out, "    use_backend cortex_router if {host} {{ path_beg {path} }}")?;
        }
        writeln!(out, "    use_backend cortex_app_{name} if {host}")?;
    }
    match plan.router {
        Some(router) => {
            writeln!(out, "    default_backend cortex_router")?;
            writeln!(
                out,
                "backend cortex_router from cortex\n    server router {router} no-check"
            )?;
        }
        None => writeln!(out, "    http-request return status 404")?,
    }
    for application in &plan.applications {
        back_end(out, application, plan.router)?;
    }
    Ok(())
}

fn back_end(out: &mut String, planned: &Planned, router: Option<SocketAddr>) -> std::fmt::Result {
    writeln!(out, "backend cortex_app_{} from cortex\n    balance leastconn", planned.name)?;
    for PlannedServer { name, address, concurrency } in &planned.servers {
        // A serial instance would wait on an idle connection that is kept open.
        match concurrency {
            Some(limit) => {
                writeln!(out, "    server {name} {address} maxconn {limit} pool-max-conn 0")?
            }
            None => writeln!(out, "    server {name} {address}")?,
        }
    }
    match router {
        Some(router) => writeln!(out, "    server router {router} backup no-check"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::{node, route};
    use super::*;

    #[test]
    fn each_application_has_its_servers_and_the_router_behind_them() {
        let routes = [route("shop", &[5], &[], &["/static"])];
        let plan = RoutingPlan::make(&routes, &[node("a", true, "127.0.0.1:8080")]);
        let text = write(&plan, "0.0.0.0:80".parse().unwrap());
        let host = "{ req.hdr(host),host_only,lower -m str shop.localhost www.example }";
        for needle in [
            &format!("    use_backend cortex_router if {host} {{ path_beg /static }}\n")[..],
            &format!("    use_backend cortex_app_shop if {host}\n"),
            "    server web1 127.0.0.1:5 maxconn 1 pool-max-conn 0\n",
            "    server router 127.0.0.1:8080 backup no-check\n",
            "    default_backend cortex_router\n",
            "    bind 0.0.0.0:80\n",
        ] {
            assert!(text.contains(needle), "{needle}:\n{text}");
        }
        assert!(write(&RoutingPlan::default(), "[::]:80".parse().unwrap()).contains("status 404"));
    }
}

//! `cortex status`.

use clap::Args;

use super::{Json, Session, apps, domains, output};
use api_types::NodeStatus;

#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    json: Json,
}

impl Status {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let status: NodeStatus = session.client.get("/v1/status").await?;
        if self.json.json {
            return output::json(&status);
        }
        let uptime = output::duration(status.uptime_seconds);
        output::print(&format!("=== node {} (version {})", status.node, status.version))?;
        output::print(&format!("Up:      {uptime}, pid {}", status.pid))?;
        if let Some(memory) = status.memory_bytes {
            output::print(&format!("Memory:  {}", output::bytes(memory)))?;
        }
        if let Some(load) = status.load_percent {
            output::print(&format!("Load:    {load} %"))?;
        }
        output::print(&format!("HTTP:    {}", status.http))?;
        output::print(&format!("Data:    {}", status.data))?;
        for own in &status.own_names {
            let certificate = domains::certificate(&own.certificate);
            output::print(&format!("Name:    {}, certificate {certificate}", own.url))?;
        }
        output::print("")?;
        if status.applications.is_empty() {
            output::print("There are no applications deployed.")?;
        } else {
            apps::print(&status.applications)?;
        }
        for problem in &status.problems {
            output::complain(problem);
        }
        Ok(())
    }
}

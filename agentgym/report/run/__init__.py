"""The report of a run: one page that says what it did, what went wrong, and what it cost.

from agentgym.report.run import report_page
Path("report.html").write_text(report_page(Path("runs/x")).html, encoding="utf-8")
"""

from agentgym.report.run.report import Report, is_waited_for, kind_of, report_page

__all__ = ["Report", "is_waited_for", "kind_of", "report_page"]

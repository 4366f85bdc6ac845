"""The layout: one column of panels where it is narrow, gauges beside tables where it is wide."""

from tui.palette import BACKGROUND, LINE, MUTED, PANEL, RED, TEAL, TEXT, blend

FOCUS = blend(TEAL, 0.6)

CSS = f"""
Screen {{ background: {BACKGROUND}; color: {TEXT}; layers: base; }}
#header {{ height: 2; background: {PANEL}; }}
#banner {{ height: 1; background: {RED}; color: {BACKGROUND}; text-style: bold; }}
#body {{ height: 1fr; }}

.chart, #blocks, #waiting, #loading, #instances, #queues, #sequences {{
    border: round {LINE};
    border-title-color: {MUTED};
    border-subtitle-color: {MUTED};
    border-title-style: none;
    background: {BACKGROUND};
    padding: 0 1;
    text-wrap: nowrap;
    text-overflow: ellipsis;
}}
#header, #banner {{ text-wrap: nowrap; text-overflow: ellipsis; }}
DataTable {{
    scrollbar-size-vertical: 1;
    overflow-x: hidden;
    &:focus {{ background-tint: 0%; }}
    & > .datatable--header {{ background: {BACKGROUND}; color: {MUTED}; text-style: none; }}
    &:focus > .datatable--header {{ background-tint: 0%; }}
    & > .datatable--hover {{ background: {BACKGROUND}; }}
}}
#instances:focus, #queues:focus, #sequences:focus {{
    border: round {FOCUS};
    border-title-color: {TEXT};
}}
#body.-stale {{ opacity: 55%; }}

#instances, #queues {{ height: auto; max-height: 40%; }}
#sequences, #loading {{ height: 1fr; min-height: 4; }}
#filter {{ display: none; height: 1; border: none; padding: 0 1; background: {PANEL}; }}
#filter.-open {{ display: block; }}

.-narrow #body {{ layout: vertical; }}
.-narrow #gauges {{ height: auto; }}
.-narrow #charts {{ layout: horizontal; height: 4; }}
.-narrow .chart {{ width: 1fr; height: 100%; }}
.-narrow #blocks {{ height: auto; min-height: 3; max-height: 6; }}
.-narrow #waiting {{ display: none; }}
.-narrow #tables {{ height: 1fr; }}
.-narrow.-short #blocks {{ max-height: 5; }}
.-narrow.-short #instances {{ max-height: 6; }}
.-narrow.-short #queues {{ max-height: 3; border: none; padding: 0 2; }}
.-narrow.-short #body.-queues #charts {{ height: 3; }}
.-narrow.-tall #charts {{ height: 7; }}
.-narrow.-tall #blocks {{ height: 10; max-height: 10; }}
.-narrow.-tall #waiting {{ display: block; height: 6; }}

.-wide #body {{ layout: horizontal; }}
.-wide #gauges {{ width: 33%; height: 100%; }}
.-wide #tables {{ width: 1fr; height: 100%; }}
.-wide #charts {{ layout: vertical; height: 3fr; min-height: 9; }}
.-wide .chart {{ height: 1fr; }}
.-wide #blocks {{ height: 2fr; }}
.-wide #waiting {{ height: 1fr; min-height: 4; }}
.-wide.-short #waiting {{ display: none; }}

HelpScreen {{ align: center middle; background: {BACKGROUND} 60%; }}
#help {{
    width: 62; height: auto; max-height: 100%; padding: 1 2; background: {PANEL};
    border: round {TEAL}; border-title-color: {TEAL}; border-subtitle-color: {MUTED};
}}
"""

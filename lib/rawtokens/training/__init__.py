"""From verified responses to what drafter trainers read: ids untouched, masks from lengths and segments."""
